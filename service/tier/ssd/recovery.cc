// SPDX-License-Identifier: Apache-2.0
// The start of a device: opens its folder, and finds the data of the previous process.
#include "service/tier/ssd/device.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "base/status.h"

namespace cairn {
namespace {

constexpr absl::Duration kLockStep = absl::Milliseconds(100);
// The ledger's name for the id of its tier.
constexpr char kOwner[] = "tier";
// The ledger's name for the epoch up to which deletions are done in it.
constexpr char kDeletions[] = "deletions";

std::string_view BytesOf(const SsdTierId& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

absl::Status MakeFolders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? absl::ErrnoToStatus(error.value(), path) : absl::OkStatus();
}

absl::StatusOr<Fd> TakeLock(const std::string& folder, absl::Duration wait,
                            absl::FunctionRef<void(std::string_view what)> on_step) {
  const std::string path = absl::StrCat(folder, "/LOCK");
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.is_valid()) {
    return absl::ErrnoToStatus(errno, path);
  }
  const absl::Time deadline = MonotonicNow() + wait;
  for (bool is_first = true; ::flock(file.get(), LOCK_EX | LOCK_NB) != 0; is_first = false) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return absl::ErrnoToStatus(errno, path);
    }
    if (MonotonicNow() >= deadline) {
      return absl::FailedPreconditionError(
          absl::StrCat("another process still uses it after ", absl::FormatDuration(wait)));
    }
    if (is_first) {
      LogInfo("ssd", "another process uses the folder: waiting for it to end",
              {{"path", folder}, {"seconds", absl::ToInt64Seconds(wait)}});
      on_step(absl::StrCat("waiting for another process to leave ", folder));
    }
    absl::SleepFor(kLockStep);
  }
  return file;
}

using SegmentState = SegmentMap::State;

constexpr size_t kBatchImages = 1024;

}  // namespace

// --- Open ----------------------------------------------------------------------------------------
// Lock, tier.meta, ledger. Damaged files make the device start empty. Files that cannot be read now
// are left as they are.

absl::StatusOr<std::unique_ptr<SsdDevice>> SsdDevice::Open(Options options,
                                                           std::unique_ptr<IoEngine> engine,
                                                           CopyTier& tier) {
  CAIRN_ASSIGN_OR_RETURN(
      const SsdBudget budget,
      ShareOut(options.budget_bytes, options.segment_bytes, options.extents_max));
  std::unique_ptr<SsdDevice> device(
      new SsdDevice(std::move(options), std::move(engine), budget, tier));
  CAIRN_RETURN_IF_ERROR(device->OpenFolder());
  CAIRN_RETURN_IF_ERROR(device->OpenLedger());
  CAIRN_RETURN_IF_ERROR(device->ReadDeletions());
  const MutexLock lock(device->mutex_);
  device->segments_ = std::make_unique<SegmentMap>(
      device->budget_.slot_count, device->budget_.segment_bytes, device->budget_.extents_max);
  device->files_.resize(device->budget_.slot_count);
  return device;
}

absl::Status SsdDevice::OpenFolder() {
  CAIRN_RETURN_IF_ERROR(CheckMounted(options_.path, options_.fstab));
  struct stat there = {};
  if (::stat(options_.path.c_str(), &there) == 0 && !S_ISDIR(there.st_mode)) {
    return absl::InvalidArgumentError("it is not a folder");
  }
  CAIRN_RETURN_IF_ERROR(MakeFolders(absl::StrCat(options_.path, "/segments")));
  CAIRN_RETURN_IF_ERROR(CheckDirectIo(options_.path));
  CAIRN_ASSIGN_OR_RETURN(lock_file_, TakeLock(options_.path, options_.lock_wait, options_.on_step));
  options_.on_step(absl::StrCat("opening ", options_.path));
  side_files_ =
      std::make_unique<SideFiles>(absl::StrCat(options_.path, "/objects"), budget_.side_bytes_max);
  return side_files_->Open();
}

absl::Status SsdDevice::OpenLedger() {
  const absl::StatusOr<TierMeta> meta = ReadTierMeta(options_.path);
  if (absl::IsNotFound(meta.status())) {
    return StartEmpty("");
  }
  if (absl::IsDataLoss(meta.status())) {
    return StartEmpty(ToStd(meta.status().message()));
  }
  if (absl::IsUnimplemented(meta.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        options_.path, ": a newer version wrote it; name another folder, or remove it"));
  }
  CAIRN_RETURN_IF_ERROR(meta.status());
  tier_id_ = meta->tier_id;
  if (meta->segment_bytes != budget_.segment_bytes) {
    // The budget has changed, but existing segments keep their size.
    const absl::StatusOr<SsdBudget> shared =
        ShareOut(options_.budget_bytes, meta->segment_bytes, options_.extents_max);
    if (!shared.ok()) {
      return StartEmpty(ToStd(shared.status().message()));
    }
    budget_ = *shared;
  }
  absl::StatusOr<std::unique_ptr<Ledger>> ledger =
      Ledger::Open({.path = absl::StrCat(options_.path, "/index"),
                    .write_buffer_bytes = budget_.write_buffer_bytes});
  if (absl::IsDataLoss(ledger.status())) {
    return StartEmpty(ToStd(ledger.status().message()));
  }
  CAIRN_RETURN_IF_ERROR(ledger.status());
  ledger_ = *std::move(ledger);
  const absl::Status owner = CheckOwner();
  return absl::IsDataLoss(owner) ? StartEmpty(ToStd(owner.message())) : owner;
}

absl::Status SsdDevice::CheckOwner() const {
  const absl::StatusOr<std::string> owner = ledger_->GetMeta(kOwner);
  if (absl::IsNotFound(owner.status()) || absl::IsDataLoss(owner.status()) ||
      (owner.ok() && *owner != BytesOf(tier_id_))) {
    return absl::DataLossError("the ledger is not this tier's");
  }
  return owner.status();
}

// --- Open: deletions -----------------------------------------------------------------------------

void SsdDevice::PutEpoch(uint64_t epoch, Ledger::Batch& batch) {
  batch.PutMeta(kDeletions, {reinterpret_cast<const char*>(&epoch), sizeof(epoch)});
}

absl::Status SsdDevice::ReadDeletions() {
  absl::StatusOr<DeletionHistory> history = deletion_file_.Read();
  if (history.ok()) {
    history_ = *std::move(history);
  } else if (!absl::IsNotFound(history.status()) && !absl::IsDataLoss(history.status())) {
    return history.status();
  }
  const absl::StatusOr<std::string> epoch = ledger_->GetMeta(kDeletions);
  if (absl::IsNotFound(epoch.status()) || absl::IsDataLoss(epoch.status()) ||
      (epoch.ok() && epoch->size() != sizeof(uint64_t))) {
    return absl::OkStatus();  // the device is new and has no blocks
  }
  CAIRN_RETURN_IF_ERROR(epoch.status());
  uint64_t done = 0;
  std::memcpy(&done, epoch->data(), sizeof(done));
  done_epoch_ = done;
  if (!history_.has_value() || history_->epoch < done) {
    // The file has lost its end, or all of it. Earlier deletions are unknown.
    history_.emplace();
    history_->base = history_->epoch = done;
  }
  return absl::OkStatus();
}

// --- Open: an empty device -----------------------------------------------------------------------

absl::Status SsdDevice::StartEmpty(std::string_view why) {
  if (!why.empty()) {
    resets_.Add();
    LogWarn("ssd", "contents of the device cannot be read: it starts empty",
            {{"path", options_.path}, {"error", why}});
  }
  CAIRN_ASSIGN_OR_RETURN(
      budget_, ShareOut(options_.budget_bytes, options_.segment_bytes, options_.extents_max));
  // Segments of the previous tier do not match the new id.
  tier_id_ = RandomBytes<sizeof(SsdTierId)>();
  ledger_.reset();
  CAIRN_ASSIGN_OR_RETURN(ledger_, Ledger::Open({.path = absl::StrCat(options_.path, "/index"),
                                                .write_buffer_bytes = budget_.write_buffer_bytes,
                                                .create = true}));
  Ledger::Batch batch;
  batch.PutMeta(kOwner, BytesOf(tier_id_));
  CAIRN_RETURN_IF_ERROR(ledger_->Write(batch, /*is_synced=*/true));
  return WriteTierMeta(options_.path,
                       {.tier_id = tier_id_, .segment_bytes = budget_.segment_bytes});
}

// --- Recover -------------------------------------------------------------------------------------
// Finds the segments with headers of this tier, the spaces, and the extents that the ledger records
// in those segments. Extents of unsealed segments are read and verified now. The others are
// verified when they are first read.

struct SsdDevice::Recovered {
  struct Segment {
    uint32_t slot = 0;
    bool is_sealed = false;
  };
  struct Space {
    uint64_t id = 0;  // 0: the images are not wanted
    bool has_images = false;
    SpaceRecord record;
  };
  absl::flat_hash_map<uint64_t, Segment> by_seq;
  absl::flat_hash_map<uint32_t, Space> spaces;
  absl::flat_hash_set<codecs::Digest> side_objects;  // side objects that are named
  bool has_unread = false;  // the headers of some segments cannot be read now
  uint64_t images = 0, dropped = 0;
  // Blocks that were deleted while the device was absent.
  absl::flat_hash_set<std::pair<proto::Fingerprint, proto::BlockKey>> deleted;
  bool is_stale = false;  // any block may have been deleted

  bool IsDeleted(const proto::Fingerprint& space, const proto::BlockKey& key) const {
    return is_stale || deleted.contains({space, key}) || deleted.contains({space, {}});
  }
};

absl::Status SsdDevice::Recover(RecoverySink& sink) {
  const absl::Time began = MonotonicNow();
  Recovered recovered;
  FindDeleted(recovered);
  const absl::Status status = FindAll(recovered, sink);
  std::vector<Deletion> since;
  {
    const MutexLock lock(mutex_);
    since = queued_.deleted;
    FreeUnread(since);
  }
  for (const Deletion& deletion : since) {  // some images may have been found after the deletion
    TellSink(sink, deletion);
  }
  {
    const MutexLock lock(mutex_);
    state_ = status.ok() ? State::kOk : State::kOut;
    why_ = ToStd(status.message());
    committed_.NotifyAll();
  }
  CAIRN_RETURN_IF_ERROR(status);
  side_files_->KeepOnly(recovered.side_objects);
  dropped_at_open_.Add(recovered.dropped);
  LogInfo("ssd", "device is open",
          {{"path", options_.path},
           {"engine", engine_->name()},
           {"images", recovered.images},
           {"bytes", used_bytes()},
           {"spaces", recovered.spaces.size()},
           {"dropped", recovered.dropped},
           {"seconds", absl::ToDoubleSeconds(MonotonicNow() - began)}});
  commit_thread_ = std::thread([this] { RunCommits(); });
  care_thread_ = std::thread([this] { RunCare(); });
  return absl::OkStatus();
}

void SsdDevice::FindDeleted(Recovered& recovered) {
  if (!done_epoch_.has_value()) {
    return;
  }
  const auto missed = options_.deletions->Missed(*done_epoch_, *history_);
  if (!missed.has_value()) {
    recovered.is_stale = true;
    resets_.Add();
    LogWarn("ssd", "device was absent for too many deletions: it starts empty",
            {{"path", options_.path}});
    return;
  }
  for (const Deletion& deletion : *missed) {
    recovered.deleted.emplace(deletion.space, deletion.key);
  }
}

absl::Status SsdDevice::FindAll(Recovered& recovered, RecoverySink& sink) {
  CAIRN_RETURN_IF_ERROR(FindSegments(recovered));
  CAIRN_RETURN_IF_ERROR(FindSpaces(recovered, sink));
  CAIRN_RETURN_IF_ERROR(FindExtents(recovered, sink));
  FindHints(sink);
  FindList(kGenerationsMeta, [&sink](std::string_view list) { sink.FoundGenerations(list); });
  FindList(kPoliciesMeta, [&sink](std::string_view list) { sink.FoundPolicies(list); });
  return SettleSegments(recovered);
}

void SsdDevice::FindList(const char* name, absl::FunctionRef<void(std::string_view)> found) const {
  const absl::StatusOr<std::string> list = ledger_->GetMeta(name);
  if (list.ok()) {
    found(*list);
  } else if (!absl::IsNotFound(list.status())) {
    LogWarn("ssd", "what the previous process knew of spaces cannot be read",
            {{"path", options_.path}, {"list", name}, {"error", list.status()}});
  }
}

void SsdDevice::FindHints(RecoverySink& sink) {
  const absl::StatusOr<std::string> bytes = ledger_->GetMeta(kHintsMeta);
  if (absl::IsNotFound(bytes.status())) {
    return;
  }
  const absl::StatusOr<std::vector<HintRecord>> hints =
      bytes.ok() ? ParseHints(*bytes) : bytes.status();
  if (!hints.ok()) {
    LogWarn("ssd", "hints of the previous process cannot be read",
            {{"path", options_.path}, {"error", hints.status()}});
    return;
  }
  sink.FoundHints(*hints);
}

absl::Status SsdDevice::FindSegments(Recovered& recovered) {
  std::error_code error;
  std::vector<std::string> beyond;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat(options_.path, "/segments"), error)) {
    const std::string name = entry.path().filename().string();
    uint32_t slot = 0;
    if (absl::SimpleAtoi(name, &slot) && slot >= budget_.slot_count) {
      beyond.push_back(entry.path().string());
    }
  }
  for (const std::string& path : beyond) {  // the budget is smaller than before
    ::unlink(path.c_str());
  }
  PageMemory page(kSegmentHeaderBytes);
  for (uint32_t slot = 0; slot < budget_.slot_count; ++slot) {
    const std::string path = SegmentPath(slot);
    Fd file(::open(path.c_str(), O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC));
    if (!file.is_valid() && errno == ENOENT) {
      continue;
    }
    if (!file.is_valid()) {
      return absl::ErrnoToStatus(errno, path);
    }
    struct stat facts = {};
    absl::Status read;
    if (::fstat(file.get(), &facts) != 0) {
      read = absl::ErrnoToStatus(errno, path);
    } else if (static_cast<uint64_t>(facts.st_size) != budget_.segment_bytes) {
      ::unlink(path.c_str());  // truncated, or of another size: it is made again
      continue;
    }
    files_[slot] = std::move(file);
    if (read.ok()) {
      read = Transfer(IoKind::kRead, files_[slot].get(), 0, page.bytes());
    }
    const absl::StatusOr<SegmentHeader> header =
        read.ok() ? ParseSegmentHeader(page.bytes()) : absl::StatusOr<SegmentHeader>(read);
    const MutexLock lock(mutex_);
    if (header.ok() && header->tier_id == tier_id_ && header->slot == slot &&
        header->segment_bytes == budget_.segment_bytes &&
        recovered.by_seq.try_emplace(header->seq, Recovered::Segment{.slot = slot}).second) {
      segments_->at(slot).seq = header->seq;
      next_seq_ = std::max(next_seq_, header->seq + 1);
    }
    if (read.ok() && !absl::IsUnimplemented(header.status())) {
      segments_->SetState(slot, SegmentState::kClean);
    } else {  // keep the segment and its records
      segments_->SetState(slot, SegmentState::kSetAside);
      files_[slot].Reset();
      recovered.has_unread = true;
      LogWarn("ssd", "segment header cannot be read: set aside until the next start",
              {{"segment", path}, {"error", header.status()}});
    }
  }
  return ledger_->ScanSegments([&](uint32_t slot, const SegmentRecord& record) {
    const MutexLock lock(mutex_);
    next_seq_ = std::max(next_seq_, record.seq + 1);
    const auto found = recovered.by_seq.find(record.seq);
    if (found != recovered.by_seq.end() && found->second.slot == slot) {
      found->second.is_sealed = record.state == SegmentRecord::State::kSealed;
    }
    return true;
  });
}

absl::Status SsdDevice::FindSpaces(Recovered& recovered, RecoverySink& sink) {
  CAIRN_RETURN_IF_ERROR(ledger_->ScanSpaces([&](uint32_t number, const SpaceRecord& record) {
    recovered.spaces[number].record = record;
    return true;
  }));
  for (auto& [number, space] : recovered.spaces) {
    space.id = sink.FoundSpace(space.record, *side_files_);
    const MutexLock lock(mutex_);
    spaces_[space.record.fingerprint] = {.number = number};
    space_ids_[number] = space.id;
    last_space_ = std::max(last_space_, number);
  }
  return absl::OkStatus();
}

bool SsdDevice::IsUnread(Recovered& recovered, ExtentPlace place, const ExtentRecord& record) {
  const auto space = recovered.spaces.find(record.space);
  if (!recovered.has_unread || recovered.by_seq.contains(place.seq) ||
      space == recovered.spaces.end() ||
      recovered.IsDeleted(space->second.record.fingerprint, record.key)) {
    return false;
  }
  space->second.has_images = true;
  if (record.side_object != codecs::Digest{}) {
    recovered.side_objects.insert(record.side_object);
  }
  const MutexLock lock(mutex_);
  unread_[place] = {space->second.record.fingerprint, record.key};
  return true;
}

void SsdDevice::FreeUnread(const std::vector<Deletion>& deletions) {
  if (unread_.empty()) {
    return;
  }
  absl::flat_hash_set<std::pair<proto::Fingerprint, proto::BlockKey>> deleted;
  for (const Deletion& deletion : deletions) {
    deleted.emplace(deletion.space, deletion.key);
  }
  std::erase_if(unread_, [&](const auto& unread) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto& [place, block] = unread;
    const bool is_deleted = deleted.contains(block) || deleted.contains({block.first, {}});
    if (is_deleted) {
      queued_.freed.push_back(place);
    }
    return is_deleted;
  });
}

std::optional<FoundImage> SsdDevice::Find(Recovered& recovered, ExtentPlace place,
                                          const ExtentRecord& record) {
  const auto segment = recovered.by_seq.find(place.seq);
  const auto space = recovered.spaces.find(record.space);
  if (segment == recovered.by_seq.end() || space == recovered.spaces.end() ||
      space->second.id == 0 || recovered.IsDeleted(space->second.record.fingerprint, record.key)) {
    return std::nullopt;
  }
  const uint32_t slot = segment->second.slot;
  const uint64_t begin = place.page * kPageBytes;
  const uint64_t rounded = SegmentMap::RoundedBytes(record.image_bytes);
  if (begin + rounded > budget_.segment_bytes) {
    return std::nullopt;
  }
  {
    const MutexLock lock(mutex_);
    if (place.page < segments_->at(slot).next_page) {
      return std::nullopt;
    }
  }
  if (!segment->second.is_sealed) {
    const PageMemory memory(rounded);
    if (!Transfer(IoKind::kRead, files_[slot].get(), begin, memory.bytes()).ok() ||
        !IsImageOf(record, memory.bytes().first(record.image_bytes))) {
      return std::nullopt;
    }
  }
  space->second.has_images = true;
  if (record.side_object != codecs::Digest{}) {
    recovered.side_objects.insert(record.side_object);
  }
  FoundImage image = {.image = FactsOf(record),
                      .parent = record.parent,
                      .recipe = record.recipe,
                      .directory_crc = record.directory_crc,
                      .side_object = record.side_object,
                      .names = record.names,
                      .place = {}};
  const MutexLock lock(mutex_);
  segments_->Restore(slot, place.page, record.image_bytes);
  image.place = TierExtent(tier_, TierOffset(segments_->OffsetOf(slot, place.page)),
                           record.image_bytes, rounded);
  return image;
}

absl::Status SsdDevice::FindExtents(Recovered& recovered, RecoverySink& sink) {
  std::vector<FoundImage> images;
  std::vector<ExtentPlace> dropped;
  const auto hand_over = [&] {
    recovered.images += images.size();
    sink.FoundImages(std::exchange(images, {}), *side_files_);
  };
  CAIRN_RETURN_IF_ERROR(ledger_->ScanExtents(
      0, UINT64_MAX, [&](uint64_t seq, uint32_t page, const ExtentRecord& record) {
        const ExtentPlace place = {.seq = seq, .page = page};
        {
          const MutexLock lock(mutex_);
          next_seq_ = std::max(next_seq_, seq + 1);
        }
        if (IsUnread(recovered, place, record)) {
          return true;
        }
        if (std::optional<FoundImage> image = Find(recovered, place, record)) {
          images.push_back(*std::move(image));
        } else {
          dropped.push_back(place);
        }
        if (images.size() == kBatchImages) {
          hand_over();
        }
        return true;
      }));
  hand_over();
  Ledger::Batch batch;
  for (const ExtentPlace& place : dropped) {
    batch.DeleteExtent(place.seq, place.page);
  }
  recovered.dropped = dropped.size();
  CAIRN_RETURN_IF_ERROR(RecordAllDeletions(batch));
  for (const auto& [number, space] : recovered.spaces) {
    for (const SpaceRecord::Current& current : space.record.current) {
      recovered.side_objects.insert(current.id);
    }
    if (!space.has_images) {
      batch.DeleteSpace(number);
      const MutexLock lock(mutex_);
      spaces_.erase(space.record.fingerprint);
      space_ids_.erase(number);
    }
  }
  CAIRN_RETURN_IF_ERROR(ledger_->Write(batch, /*is_synced=*/true));
  return ledger_->DropLostFields();
}

absl::Status SsdDevice::SettleSegments(const Recovered& recovered) {
  Ledger::Batch batch;
  for (const auto& [seq, segment] : recovered.by_seq) {
    {
      const MutexLock lock(mutex_);
      SegmentMap::Segment& found = segments_->at(segment.slot);
      if (found.state == SegmentState::kSetAside) {
        continue;
      }
      if (found.extents.empty()) {
        batch.DeleteExtentsOf(seq);
        batch.DeleteSegment(segment.slot);
        continue;
      }
      segments_->SetState(segment.slot, SegmentState::kSealed);
    }
    if (!segment.is_sealed) {
      if (::fdatasync(files_[segment.slot].get()) != 0) {
        return absl::ErrnoToStatus(errno, SegmentPath(segment.slot));
      }
      batch.PutSegment(segment.slot, {.seq = seq, .state = SegmentRecord::State::kSealed});
    }
  }
  return ledger_->Write(batch, /*is_synced=*/true);
}

}  // namespace cairn
