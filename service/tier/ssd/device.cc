// SPDX-License-Identifier: Apache-2.0
// Places, transfers of bytes, and records of both. segments.cc has the care of segments;
// recovery.cc has opening and recovery.
#include "service/tier/ssd/device.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/in_flight.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "codecs/image/image.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr std::string_view kSegmentStates[SegmentMap::kStateCount] = {
    "absent", "clean", "ready", "open", "full", "sealed", "reclaiming", "set aside"};

// Calls `submit` with a completion, waits for it, and returns its status. REQUIRES: the completion
// runs once. Only for threads of the device, which may wait.
absl::Status AwaitDone(absl::FunctionRef<void(TierDone done)> submit) {
  absl::Status result;
  InFlight in_flight;
  in_flight.Enter();
  submit([&](absl::Status status) {
    result = std::move(status);
    in_flight.Leave();
  });
  in_flight.Await();
  return result;
}

bool AreWholePages(const void* memory, uint64_t offset) {
  return reinterpret_cast<uintptr_t>(memory) % kPageBytes == 0 && offset % kPageBytes == 0;
}

int64_t UnixSeconds() { return absl::ToUnixSeconds(MonotonicNow()); }

// The largest number of callers that share a sync, and the longest time that the first of them
// waits.
constexpr size_t kSyncsMax = 16;
constexpr absl::Duration kSyncWait = absl::Milliseconds(2);

}  // namespace

absl::StatusOr<SsdBudget> ShareOut(uint64_t budget_bytes, uint64_t segment_bytes,
                                   uint64_t extents_max) {
  if (segment_bytes == 0 && budget_bytes < limits::kSsdBytesMin) {
    return absl::InvalidArgumentError(absl::StrCat("a budget of ", FormatBytes(budget_bytes),
                                                   ": at least ",
                                                   FormatBytes(limits::kSsdBytesMin)));
  }
  SsdBudget budget;
  budget.segment_bytes = segment_bytes > 0
                             ? segment_bytes
                             : std::clamp(budget_bytes / limits::kSsdSegmentsMin / kMiB * kMiB,
                                          limits::kSsdSegmentBytesMin, limits::kSsdSegmentBytesMax);
  budget.extents_max = extents_max > 0 ? extents_max : limits::SsdImagesAuto(budget_bytes);
  budget.write_buffer_bytes = limits::SsdWriteBufferBytes(budget_bytes);
  // Room for tables, logs, and a second copy of tables during compaction. Measured with 10 M
  // records.
  budget.ledger_bytes_max = 2 * budget.write_buffer_bytes + 256 * budget.extents_max;
  budget.side_bytes_max = std::min<uint64_t>(budget_bytes / 16, 1_GiB);
  const uint64_t others = budget.ledger_bytes_max + budget.side_bytes_max + kMiB;
  budget.slot_count =
      static_cast<uint32_t>((budget_bytes - std::min(others, budget_bytes)) / budget.segment_bytes);
  if (budget.slot_count < SegmentMap::kSlotsMin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a budget of ", FormatBytes(budget_bytes), " is ", budget.slot_count, " segments of ",
        FormatBytes(budget.segment_bytes), ": at least ", SegmentMap::kSlotsMin));
  }
  return budget;
}

SsdDevice::SsdDevice(Options options, std::unique_ptr<IoEngine> engine, const SsdBudget& budget,
                     CopyTier& tier)
    : options_(std::move(options)),
      budget_(budget),
      tier_(tier),
      engine_(std::move(engine)),
      deletion_file_(absl::StrCat(options_.path, "/deletions")) {}

std::string SsdDevice::SegmentPath(uint32_t slot) const {
  return absl::StrCat(options_.path, "/segments/", absl::StrFormat("%06u", slot));
}

// --- Places --------------------------------------------------------------------------------------

absl::StatusOr<TierExtent> SsdDevice::Reserve(uint64_t bytes) {
  if (bytes > image_bytes_max()) {
    too_large_.Add();
    return absl::ResourceExhaustedError(absl::StrCat("ssd: an image of ", bytes,
                                                     " bytes: at most a quarter of a segment of ",
                                                     budget_.segment_bytes));
  }
  const MutexLock lock(mutex_);
  if (is_stopping_ || !TakesImages()) {
    return absl::UnavailableError(
        absl::StrCat("ssd: ", is_stopping_ ? "stopping" : ToAbsl(cairn::Name(ShownState()))));
  }
  const std::optional<uint64_t> offset = segments_->Allocate(bytes, /*is_carried=*/false);
  if (IsCareDue()) {
    care_due_.NotifyOne();
  }
  if (!offset.has_value()) {
    no_segment_.Add();
    return absl::ResourceExhaustedError("ssd: no segment is ready");
  }
  reserved_[*offset] = BeginWrite();
  return TierExtent(tier_, TierOffset(*offset), bytes, SegmentMap::RoundedBytes(bytes));
}

void SsdDevice::Free(uint64_t tier_offset) {
  const uint64_t offset = DeviceOffset(tier_offset);
  const MutexLock lock(mutex_);
  if (const auto reserved = reserved_.find(offset); reserved != reserved_.end()) {
    EndWrite(reserved->second);  // it was reserved, but never written
    reserved_.erase(reserved);
  }
  // A copy that is being moved keeps its old record until the new place is durable.
  if (moving_from_ != offset) {
    UnlistLocked(offset);
  }
  if (segments_->Free(offset)) {
    care_due_.NotifyOne();
  }
}

void SsdDevice::Unlist(uint64_t tier_offset) {
  const MutexLock lock(mutex_);
  UnlistLocked(DeviceOffset(tier_offset));
}

void SsdDevice::UnlistLocked(uint64_t offset) {
  SegmentMap::Extent& extent = segments_->Find(offset);
  if (!extent.is_recorded || is_stopping_) {
    return;
  }
  extent.is_recorded = false;
  QueueFreed(offset);
  if (const auto moved = moved_from_.find(offset); moved != moved_from_.end()) {
    queued_.freed.push_back(moved->second);
    moved_from_.erase(moved);
  }
}

void SsdDevice::QueueFreed(uint64_t offset) {
  queued_.freed.push_back(
      {segments_->at(segments_->SlotOf(offset)).seq, segments_->PageOf(offset)});
  commit_due_.NotifyOne();
}

uint64_t SsdDevice::BeginWrite() {
  writes_.insert(next_write_);
  return next_write_++;
}

void SsdDevice::EndWrite(uint64_t id) {
  writes_.erase(id);
  committed_.NotifyAll();
}

void SsdDevice::QueueDeletions(const std::vector<Deletion>& deletions) {
  const MutexLock lock(mutex_);
  queued_.deleted.insert(queued_.deleted.end(), deletions.begin(), deletions.end());
  FreeUnread(deletions);
  commit_due_.NotifyOne();
}

void SsdDevice::PolicyChanged(const SpaceRecord& space) {
  const MutexLock lock(mutex_);
  queued_.changed.push_back(space);
  commit_due_.NotifyOne();
}

void SsdDevice::SaveMeta(const char* name, std::string bytes) {
  const MutexLock lock(mutex_);
  if (state_ == State::kOut || is_stopping_) {
    return;
  }
  queued_.metas[name] = std::move(bytes);
  commit_due_.NotifyOne();
}

bool SsdDevice::RecordsDeletions() const {
  const MutexLock lock(mutex_);
  return state_ != State::kOut && !is_ledger_failed_;
}

bool SsdDevice::AwaitFreed(absl::Time deadline) {
  const MutexLock lock(mutex_);
  const auto await = [&](auto is_over) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!is_over() && !is_stopping_ && committed_.WaitUntil(mutex_, deadline)) {
    }
    return is_over();
  };
  // Wait until recovery has recorded the deletions that it applies.
  if (!await([&] { return state_ != State::kRecovering; }) || state_ == State::kOut ||
      is_stopping_) {  // images freed during the stop stay in the ledger
    return false;
  }
  // Wait for running writes. One may be of a deleted image, whose record is written and then
  // deleted.
  const uint64_t next_write = next_write_;
  if (!await([&] { return writes_.empty() || *writes_.begin() >= next_write; })) {
    return false;
  }
  // The records are in the running round, or in the queue for the next one.
  const uint64_t last_round = queued_.is_empty() ? next_round_ - 1 : next_round_;
  // If the ledger has failed, reopening it drops the records of images that were freed meanwhile.
  if (!await([&] { return rounds_over_ >= last_round && !is_ledger_failed_; })) {
    return false;
  }
  records_wanted_round_ = std::max(records_wanted_round_, last_round);
  commit_due_.NotifyOne();
  return await([&] { return records_synced_round_ >= last_round && !is_ledger_failed_; });
}

// --- Transfers -----------------------------------------------------------------------------------
// The engine moves whole pages. Other bytes are copied through a bounce buffer of whole pages.

IoId SsdDevice::Read(const TierRead& read, TierDone done) {
  const uint64_t offset = DeviceOffset(read.place->offset());
  IoTransfer transfer;
  transfer.deadline = read.deadline;
  transfer.is_background = read.is_background;
  uint32_t slot = 0;
  {
    const MutexLock lock(mutex_);
    segments_->Find(offset).is_hit |= !read.is_background;
    slot = segments_->SlotOf(offset);
    transfer.fd = files_[slot].get();
  }
  const uint64_t first = offset % budget_.segment_bytes + read.offset;
  const std::span<std::byte> target = read.target;
  // Whole pages are read into the target. The rest is read through the bounce buffer. If the target
  // is not aligned, all bytes are.
  const size_t direct =
      AreWholePages(target.data(), first) ? target.size() / kPageBytes * kPageBytes : 0;
  const uint64_t begin = first / kPageBytes * kPageBytes;
  const uint64_t end = SegmentMap::RoundedBytes(first + target.size());
  PageMemory bounce(end - begin - direct);
  transfer.offset = begin;
  transfer.parts[0] = direct > 0 ? target.first(direct) : bounce.bytes();
  transfer.parts[1] = direct > 0 ? bounce.bytes() : std::span<std::byte>();
  const size_t skip = direct > 0 ? 0 : first - begin;
  const std::span<std::byte> rest = target.subspan(direct);
  return engine_->Submit(transfer, [this, slot, rest, skip, bounce = std::move(bounce),
                                    bytes = read.is_background ? 0 : target.size(),
                                    done = std::move(done)](absl::Status status) mutable {
    if (status.ok()) {
      read_bytes_.Add(bytes);
      if (!rest.empty()) {
        std::memcpy(rest.data(), bounce.bytes().data() + skip, rest.size());
      }
    } else {
      CountError(slot, IoKind::kRead, status);
    }
    std::move(done)(std::move(status));
  });
}

IoId SsdDevice::Write(const TierWrite& write, TierDone done) {
  CAIRN_CHECK(write.space != nullptr && write.source.size() == write.place->size_bytes());
  const uint64_t offset = DeviceOffset(write.place->offset());
  Written written;
  written.offset = offset;
  written.record = {.key = write.image.key,
                    .parent = write.parent,
                    .first_position = write.image.first_position,
                    .tokens = write.image.tokens,
                    .group = write.image.group,
                    .slice = write.image.slice,
                    .source_bytes = write.image.source_bytes,
                    .recipe = write.copy.recipe,
                    .image_bytes = write.source.size(),
                    .directory_crc = write.copy.directory_crc,
                    .side_object = write.side_object,
                    .created_unix_s = UnixSeconds(),
                    .expires_unix_s = write.image.expires_unix_s,
                    .names = write.names};
  written.space = write.space;
  written.space_id = write.image.space_id;
  written.side_objects = write.side_objects;
  written.done = std::move(done);
  IoTransfer transfer;
  transfer.kind = IoKind::kWrite;
  transfer.deadline = write.deadline;
  transfer.is_background = true;
  {
    const MutexLock lock(mutex_);
    const uint32_t slot = segments_->SlotOf(offset);
    ++segments_->at(slot).writes;
    transfer.fd = files_[slot].get();
    const auto reserved = reserved_.find(offset);
    CAIRN_CHECK(reserved != reserved_.end(), "a place is written once");
    written.id = reserved->second;
    reserved_.erase(reserved);
  }
  // The rest of the image's last page is filled with zeros.
  const std::span<const std::byte> source = write.source;
  const size_t direct =
      AreWholePages(source.data(), 0) ? source.size() / kPageBytes * kPageBytes : 0;
  PageMemory bounce(SegmentMap::RoundedBytes(source.size() - direct));
  if (const std::span<const std::byte> rest = source.subspan(direct); !rest.empty()) {
    std::memcpy(bounce.bytes().data(), rest.data(), rest.size());
    std::memset(bounce.bytes().data() + rest.size(), 0, bounce.bytes().size() - rest.size());
  }
  // The engine does not write to the parts of a write.
  const std::span<std::byte> whole(const_cast<std::byte*>(source.data()), direct);
  transfer.offset = offset % budget_.segment_bytes;
  transfer.parts[0] = direct > 0 ? whole : bounce.bytes();
  transfer.parts[1] = direct > 0 ? bounce.bytes() : std::span<std::byte>();
  return engine_->Submit(transfer, [this, bounce = std::move(bounce),
                                    written = std::move(written)](absl::Status status) mutable {
    Landed(std::move(written), std::move(status));
  });
}

void SsdDevice::Landed(Written written, absl::Status status) {
  const uint64_t bytes = written.record.image_bytes;
  uint32_t slot = 0;
  {
    const MutexLock lock(mutex_);
    slot = segments_->SlotOf(written.offset);
    if (status.ok()) {
      (written.space == nullptr ? carried_bytes_ : written_bytes_).Add(bytes);
      queued_.written.push_back(std::move(written));
      commit_due_.NotifyOne();
      return;
    }
    --segments_->at(slot).writes;
  }
  CountError(slot, IoKind::kWrite, status);
  End(written, std::move(status));
}

void SsdDevice::End(Written& written, absl::Status status) {
  std::move(written.done)(std::move(status));
  const MutexLock lock(mutex_);
  EndWrite(written.id);
}

void SsdDevice::CountError(uint32_t slot, IoKind kind, const absl::Status& status) {
  // The error of a transfer that did not begin is not a fault of the device.
  if (!absl::IsDataLoss(status) && !absl::IsInternal(status)) {
    return;
  }
  faults_.Add();
  size_t set_aside = 0;
  {
    const MutexLock lock(mutex_);
    const SegmentMap::State state = segments_->at(slot).state;
    if (kind == IoKind::kWrite &&
        (state == SegmentMap::State::kOpen || state == SegmentMap::State::kFull)) {
      segments_->SetState(slot, SegmentMap::State::kSetAside);
      care_due_.NotifyOne();
    }
    set_aside = segments_->count(SegmentMap::State::kSetAside);
  }
  LogWarn("ssd", "transfer failed",
          {{"path", options_.path},
           {"segment", slot},
           {"op", kind == IoKind::kRead ? "read" : "write"},
           {"error", status}});
  if (set_aside >= kSetAsideMax) {
    TurnReadOnly("segments failed", status);
  }
}

absl::Status SsdDevice::Transfer(IoKind kind, int fd, uint64_t offset, std::span<std::byte> pages) {
  return AwaitDone([&](IoDone done) {
    engine_->Submit(
        {.kind = kind, .fd = fd, .offset = offset, .parts = {pages}, .is_background = true},
        std::move(done));
  });
}

bool SsdDevice::IsImageOf(const ExtentRecord& record, std::span<const std::byte> bytes) {
  codecs::ImageView view;
  if (codecs::ParseImage(bytes, &view) != codecs::Error::kOk) {
    return false;
  }
  const codecs::ImageSpec& spec = view.spec();
  static_assert(sizeof(spec.key) == sizeof(record.key));
  return view.bytes().size() == record.image_bytes &&
         codecs::PeekDirectoryCrc(bytes) == record.directory_crc &&
         std::memcmp(spec.key.data(), record.key.data(), sizeof(record.key)) == 0 &&
         spec.group == record.group && spec.slice == record.slice &&
         codecs::VerifyTiles(view) == codecs::Error::kOk;
}

// --- Records -------------------------------------------------------------------------------------
// In each round, the commit thread writes one batch of records: those of images written and freed
// since the last round.

void SsdDevice::RunCommits() {
  pthread_setname_np(pthread_self(), "ssd-commit");
  for (;;) {
    Round round;
    std::vector<TierDone> syncs;
    uint64_t number = 0;
    {
      const MutexLock lock(mutex_);
      while (is_mending_ ||
             (queued_.is_empty() && !IsSyncDue() && !AreRecordsDue() && !is_landed_)) {
        commit_due_.WaitUntil(mutex_,
                              is_mending_ || syncs_.empty() ? absl::InfiniteFuture() : sync_at_);
      }
      if (queued_.is_empty() && !IsSyncDue() && !AreRecordsDue()) {
        return;
      }
      round = std::exchange(queued_, {});
      if (IsSyncDue()) {
        syncs.swap(syncs_);
      }
      is_committing_ = true;
      number = next_round_++;
      const bool is_recording =
          !round.written.empty() || !round.freed.empty() || !round.changed.empty();
      recorded_round_ = is_recording ? number : recorded_round_;
    }
    Commit(std::move(round));
    RunSyncs(std::move(syncs), number);
    SyncRecords(number);
    const MutexLock lock(mutex_);
    is_committing_ = false;
    rounds_over_ = number;
    committed_.NotifyAll();
  }
}

void SsdDevice::Commit(Round round) {
  std::vector<Written>& written = round.written;
  Ledger::Batch batch;
  std::vector<absl::Status> results(written.size());
  for (size_t i = 0; i < written.size(); ++i) {
    Written& write = written[i];
    const uint32_t slot = write.offset / budget_.segment_bytes;
    results[i] = IsLost(slot) ? absl::DataLossError("its segment was lost")
                              : AddSpaceAndSideObjects(write, batch);
    if (!results[i].ok()) {
      continue;
    }
    const MutexLock lock(mutex_);
    batch.PutExtent(segments_->at(slot).seq, segments_->PageOf(write.offset), write.record);
  }
  for (const ExtentPlace& place : round.freed) {
    batch.DeleteExtent(place.seq, place.page);
  }
  for (const SpaceRecord& space : round.changed) {
    const MutexLock lock(mutex_);
    // The device has no images of a space that its ledger does not know.
    if (const auto found = spaces_.find(space.fingerprint); found != spaces_.end()) {
      PutSpace(found->second, space, batch);
    }
  }
  for (const auto& [name, bytes] : round.metas) {
    batch.PutMeta(name, bytes);
  }
  absl::Status status = Record(round.deleted, batch);
  if (status.ok()) {
    status = ledger_->Write(batch, /*is_synced=*/false);
  }
  {
    const MutexLock lock(mutex_);
    for (size_t i = 0; i < written.size(); ++i) {
      results[i].Update(status);
      segments_->Find(written[i].offset).is_recorded = results[i].ok();
      --segments_->at(segments_->SlotOf(written[i].offset)).writes;
    }
    if (IsCareDue()) {
      care_due_.NotifyOne();
    }
  }
  if (!status.ok()) {
    LedgerFailed("records cannot be written", status);
  }
  for (size_t i = 0; i < written.size(); ++i) {
    End(written[i], results[i].ok() || absl::IsResourceExhausted(results[i])
                        ? results[i]
                        : absl::UnavailableError(results[i].message()));
  }
}

absl::Status SsdDevice::AddSpaceAndSideObjects(Written& written, Ledger::Batch& batch) {
  if (written.space == nullptr) {
    return absl::OkStatus();
  }
  for (const NamedSideObject& object : written.side_objects) {
    CAIRN_RETURN_IF_ERROR(side_files_->Write(object.id, object.bytes));
  }
  if (written.record.side_object != codecs::Digest{} &&
      !side_files_->Has(written.record.side_object)) {
    return absl::InternalError("a side object is missing");
  }
  const MutexLock lock(mutex_);
  const auto [found, is_new] = spaces_.try_emplace(written.space->fingerprint);
  SpaceNumber& space = found->second;
  if (is_new) {
    space.number = ++last_space_;
  }
  PutSpace(space, *written.space, batch);
  space_ids_[space.number] = written.space_id;
  written.record.space = space.number;
  return absl::OkStatus();
}

void SsdDevice::PutSpace(SpaceNumber& space, const SpaceRecord& record, Ledger::Batch& batch) {
  // A write that began before the change may complete after it.
  if (space.version == 0 || space.version < record.version) {
    batch.PutSpace(space.number, record);
    space.version = record.version;
  }
}

absl::Status SsdDevice::Record(const std::vector<Deletion>& deleted, Ledger::Batch& batch) {
  if (deleted.empty()) {
    return absl::OkStatus();
  }
  if (deletion_file_.count() + deleted.size() > 2 * options_.deletions->count_max()) {
    return RecordAllDeletions(batch);
  }
  CAIRN_RETURN_IF_ERROR(deletion_file_.Append(deleted));
  PutEpoch(deleted.back().epoch, batch);
  return absl::OkStatus();
}

absl::Status SsdDevice::RecordAllDeletions(Ledger::Batch& batch) {
  const DeletionHistory all = options_.deletions->All();
  CAIRN_RETURN_IF_ERROR(deletion_file_.Write(all));
  PutEpoch(all.epoch, batch);
  return absl::OkStatus();
}

// --- Durability ----------------------------------------------------------------------------------

void SsdDevice::Sync(TierDone done) {
  absl::Status status;
  {
    const MutexLock lock(mutex_);
    if (is_stopping_ || is_ledger_failed_ || state_ == State::kOut) {
      status = absl::UnavailableError(is_stopping_ ? "the tier is stopping" : why_);
    } else if (recorded_round_ > synced_round_ || !syncs_.empty()) {
      return QueueSync(std::move(done));
    }
  }
  std::move(done)(std::move(status));
}

void SsdDevice::QueueSync(TierDone done) {
  sync_at_ = syncs_.empty() ? MonotonicNow() + kSyncWait : sync_at_;
  syncs_.push_back(std::move(done));
  commit_due_.NotifyOne();
}

bool SsdDevice::IsSyncDue() const {
  return !syncs_.empty() &&
         (syncs_.size() >= kSyncsMax || is_landed_ || MonotonicNow() >= sync_at_);
}

void SsdDevice::RunSyncs(std::vector<TierDone> syncs, uint64_t round) {
  if (syncs.empty()) {
    return;
  }
  const absl::Status status =
      SyncUnsealed() ? ledger_->SyncWal() : absl::UnavailableError("a segment was lost");
  if (status.ok()) {
    const MutexLock lock(mutex_);
    synced_round_ = records_synced_round_ = round;
  } else if (!ledger_->health().ok()) {
    LedgerFailed("records cannot be written", status);
  }
  for (TierDone& done : syncs) {
    std::move(done)(status.ok() ? status : absl::UnavailableError(status.message()));
  }
}

bool SsdDevice::AreRecordsDue() const { return records_wanted_round_ > records_synced_round_; }

void SsdDevice::SyncRecords(uint64_t round) {
  {
    const MutexLock lock(mutex_);
    if (!AreRecordsDue()) {
      return;
    }
  }
  const absl::Status status = ledger_->SyncWal();
  if (!status.ok() && !ledger_->health().ok()) {
    LedgerFailed("records cannot be written", status);
  }
  const MutexLock lock(mutex_);
  if (status.ok()) {
    records_synced_round_ = round;
  } else {
    records_wanted_round_ = records_synced_round_;  // AwaitFreed() retries
  }
}

bool SsdDevice::SyncUnsealed() {
  std::vector<uint32_t> slots;
  {
    const MutexLock lock(mutex_);
    for (uint32_t i = 0; i < segments_->slot_count(); ++i) {
      const SegmentMap::State state = segments_->at(i).state;
      if (state == SegmentMap::State::kOpen || state == SegmentMap::State::kFull ||
          (state == SegmentMap::State::kSetAside && segments_->at(i).live_pages > 0 &&
           !segments_->at(i).is_lost)) {
        slots.push_back(i);
      }
    }
  }
  bool are_kept = true;
  for (const uint32_t slot : slots) {
    if (::fdatasync(files_[slot].get()) != 0) {
      CountError(slot, IoKind::kWrite,
                 absl::DataLossError(absl::ErrnoToStatus(errno, "fdatasync").message()));
      LoseSegment(slot);
      are_kept = false;
    }
  }
  return are_kept;
}

bool SsdDevice::SyncNow() {
  return AwaitDone([this](TierDone done) { Sync(std::move(done)); }).ok();
}

void SsdDevice::LoseSegment(uint32_t slot) {
  {
    const MutexLock lock(mutex_);
    segments_->at(slot).is_lost = true;
  }
  const uint64_t begin = slot * budget_.segment_bytes;
  evictor_->LoseCopies(TierId::kSsd, TierOffset(begin), TierOffset(begin + budget_.segment_bytes));
}

bool SsdDevice::IsLost(uint32_t slot) const {
  const MutexLock lock(mutex_);
  return segments_->at(slot).is_lost;
}

absl::Status SsdDevice::CommitNow(Written written) {
  // The commit thread outlives the threads that wait for it.
  return AwaitDone([&](TierDone done) {
    written.done = std::move(done);
    Landed(std::move(written), absl::OkStatus());
  });
}

// --- Stop ----------------------------------------------------------------------------------------

void SsdDevice::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  care_due_.NotifyAll();
  committed_.NotifyAll();
  engine_->Stop(absl::InfiniteFuture());
  if (care_thread_.joinable()) {
    care_thread_.join();
  }
  {
    const MutexLock lock(mutex_);
    is_landed_ = true;
  }
  commit_due_.NotifyAll();
  if (commit_thread_.joinable()) {
    commit_thread_.join();
    if (const absl::Status status = ledger_->SyncWal(); !status.ok()) {
      LogWarn("ssd", "the last records may not be durable",
              {{"path", options_.path}, {"error", status}});
    }
  }
}

absl::Status SsdDevice::SetRetired(bool is_retired) {
  const MutexLock lock(mutex_);
  is_retired_ = is_retired;
  if (!is_retired) {
    grow_again_ = absl::InfinitePast();
    probe_again_ = state_ == State::kReadOnly ? absl::InfinitePast() : probe_again_;
    care_due_.NotifyOne();
  }
  return absl::OkStatus();
}

// --- Figures -------------------------------------------------------------------------------------

uint64_t SsdDevice::used_bytes() const {
  const MutexLock lock(mutex_);
  return segments_ == nullptr ? 0 : segments_->live_bytes();
}

bool SsdDevice::is_out() const {
  const MutexLock lock(mutex_);
  return state_ == State::kOut;
}

bool SsdDevice::is_idle() const {
  const MutexLock lock(mutex_);
  return segments_->live_count() == 0 && writes_.empty() && queued_.written.empty() &&
         !is_committing_ && engine_->transfer_count() == 0;
}

SsdDevice::State SsdDevice::ShownState() const {
  return is_retired_ ? std::max(state_, State::kReadOnly) : state_;
}

DeviceReport SsdDevice::Describe() const {
  DeviceReport report;
  report.path = options_.path;
  report.capacity_bytes = capacity_bytes();
  report.written_bytes = written_bytes_.Value();
  report.carried_bytes = carried_bytes_.Value();
  report.read_bytes = read_bytes_.Value();
  report.fault_count = faults_.Value();
  report.transfer_count = engine_->transfer_count();
  report.engine = engine_->name();
  const MutexLock lock(mutex_);
  report.state = ShownState();
  report.reason = state_ == State::kOk ? "" : why_;
  if (is_retired_) {
    absl::StrAppend(&report.reason, report.reason.empty() ? "" : "; ", "retired");
  }
  report.is_retired = is_retired_;
  report.is_trying =
      state_ == State::kReadOnly && !is_retired_ && (is_trying_ || MonotonicNow() >= probe_again_);
  report.used_bytes = segments_->live_bytes();
  report.image_count = segments_->live_count();
  for (size_t state = 0; state < SegmentMap::kStateCount; ++state) {
    report.segments.emplace_back(kSegmentStates[state],
                                 segments_->count(static_cast<SegmentMap::State>(state)));
  }
  return report;
}

void SsdDevice::ReportState(MetricSink& sink, uint64_t number, State shown) {
  const std::string name = absl::StrCat(number);
  for (const State state : {State::kOk, State::kCapped, State::kReadOnly, State::kOut}) {
    const MetricLabel labels[] = {{"device", name}, {"state", cairn::Name(state)}};
    sink.AddGauge("cairn_ssd_state", "1 for the state of a device.", labels,
                  shown == state ? 1 : 0);
  }
}

void SsdDevice::Report(MetricSink& sink) const {
  const std::string number = absl::StrCat(options_.number);
  const MetricLabel device{"device", number};
  const auto gauge = [&](std::string_view name, std::string_view help, uint64_t value) {
    sink.AddGauge(name, help, {&device, 1}, static_cast<double>(value));
  };
  const auto counter = [&](std::string_view name, std::string_view help, const Counter& value) {
    sink.AddCounter(name, help, {&device, 1}, value.Value());
  };
  {
    const MutexLock lock(mutex_);
    for (size_t state = 0; state < SegmentMap::kStateCount; ++state) {
      const MetricLabel labels[] = {device, {"state", kSegmentStates[state]}};
      sink.AddGauge("cairn_ssd_segments", "Segments of a device, by state.", labels,
                    static_cast<double>(segments_->count(static_cast<SegmentMap::State>(state))));
    }
    ReportState(sink, options_.number, ShownState());
    gauge("cairn_ssd_extents", "Images on a device.", segments_->live_count());
  }
  gauge("cairn_ssd_ledger_bytes", "Bytes of files of a device's ledger.", ledger_->disk_bytes());
  gauge("cairn_ssd_side_object_bytes", "Bytes of side objects on a device.", side_files_->bytes());
  counter("cairn_ssd_written_bytes_total",
          "Bytes of images written to a device for the first time.", written_bytes_);
  counter("cairn_ssd_carried_bytes_total",
          "Bytes of images that reclaim rewrote because they were in use.", carried_bytes_);
  counter("cairn_ssd_read_bytes_total", "Bytes of images read from a device for gets.",
          read_bytes_);
  counter("cairn_ssd_reclaimed_segments_total", "Segments emptied for reuse.", reclaims_);
  counter("cairn_ssd_resets_total", "Times that a device started empty because it was unreadable.",
          resets_);
  counter("cairn_ssd_dropped_at_open_total", "Records at start that named no complete image.",
          dropped_at_open_);
  counter("cairn_ssd_corrupt_total", "Images that reclaim found damaged.", corrupt_);
  const auto by = [&](std::string_view name, std::string_view help, std::string_view label,
                      std::string_view value, const Counter& count) {
    const MetricLabel labels[] = {device, {label, value}};
    sink.AddCounter(name, help, labels, count.Value());
  };
  by("cairn_ssd_refused_total", "Writes that a device had no room for.", "reason", "size",
     too_large_);
  by("cairn_ssd_refused_total", "Writes that a device had no room for.", "reason", "segment",
     no_segment_);
  engine_->Report(sink, {&device, 1});
}

}  // namespace cairn
