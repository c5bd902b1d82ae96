// SPDX-License-Identifier: Apache-2.0
// The map of a device's segments, and the care thread. The thread seals, prepares and reclaims
// segments, and repairs the device after faults.
#include "service/tier/ssd/segments.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/block_key.h"
#include "service/tier/ssd/device.h"

namespace cairn {
namespace {

using SegmentState = SegmentMap::State;

// The number of ready segments to keep, so that writes do not wait for a header.
constexpr size_t kReadyMin = 2;
constexpr absl::Duration kRest = absl::Seconds(1);
constexpr absl::Duration kGrowAgain = absl::Seconds(30);
// The ledger is compacted when it exceeds this percentage of its budget.
constexpr uint64_t kCompactPercent = 70;

// The number of spare segments that reclaim keeps for images that it carries, besides its own one.
constexpr size_t kSpareMin = 3;
// The percentage of a segment that carried images may fill because they were read. Images that the
// index holds are always carried.
constexpr uint64_t kCarriedPercentMax = 90;
// The time until a segment with running reads is tried again.
constexpr absl::Duration kReclaimAgain = absl::Milliseconds(50);

// The first pause before a test after a fault is this part of the longest pause.
constexpr int kFirstTryShare = 32;
// The longest wait for running calls of the ledger.
constexpr absl::Duration kLedgerWait = absl::Seconds(1);

}  // namespace

// --- Map -----------------------------------------------------------------------------------------

SegmentMap::SegmentMap(uint32_t slot_count, uint64_t segment_bytes, uint64_t extents_max)
    : segment_bytes_(segment_bytes), extents_max_(extents_max), segments_(slot_count) {
  CAIRN_CHECK(segment_bytes % kPageBytes == 0 && extent_bytes_max() >= kPageBytes);
  counts_[static_cast<size_t>(State::kAbsent)] = slot_count;
}

void SegmentMap::SetState(uint32_t slot, State state) {
  --counts_[static_cast<size_t>(segments_[slot].state)];
  ++counts_[static_cast<size_t>(state)];
  segments_[slot].state = state;
  if (state == State::kSealed) {
    segments_[slot].extents.shrink_to_fit();  // no extents are added any more
  }
  if (open_ == slot && state != State::kOpen) {
    open_.reset();
  }
}

size_t SegmentMap::spare_count() const {
  return count(State::kClean) + count(State::kReady) + (can_grow_ ? count(State::kAbsent) : 0);
}

bool SegmentMap::is_roomy() const {
  const size_t usable =
      slot_count() - count(State::kSetAside) - (can_grow_ ? 0 : count(State::kAbsent));
  return live_bytes_ < usable * segment_bytes_ / 2 && !is_crowded();
}

std::optional<uint64_t> SegmentMap::Allocate(uint64_t bytes, bool is_carried) {
  const auto page_count = static_cast<uint32_t>(RoundedBytes(bytes) / kPageBytes);
  CAIRN_CHECK(page_count > 0 && bytes <= extent_bytes_max());
  if (live_count_ >= extents_max_ && !is_carried) {
    // An open segment is not reclaimed. If it has all extents, close it.
    if (open_.has_value() &&
        count(State::kFull) + count(State::kSealed) + count(State::kReclaiming) == 0) {
      SetState(*open_, State::kFull);
    }
    return std::nullopt;
  }
  const uint64_t segment_pages = segment_bytes_ / kPageBytes;
  if (open_.has_value() && segments_[*open_].next_page + page_count > segment_pages) {
    SetState(*open_, State::kFull);
  }
  if (!open_.has_value()) {
    const std::optional<uint32_t> ready = Oldest(State::kReady);
    if (!ready.has_value() || (spare_count() == 1 && !is_carried)) {
      return std::nullopt;
    }
    SetState(*ready, State::kOpen);
    open_ = ready;
  }
  if (spare_count() == 0 && !is_carried) {
    return std::nullopt;
  }
  const uint32_t page = segments_[*open_].next_page;
  Add(segments_[*open_], page, bytes, /*is_recorded=*/false);
  return OffsetOf(*open_, page);
}

void SegmentMap::Restore(uint32_t slot, uint32_t page, uint64_t bytes) {
  Add(segments_[slot], page, bytes, /*is_recorded=*/true);
}

void SegmentMap::Add(Segment& segment, uint32_t page, uint64_t bytes, bool is_recorded) {
  CAIRN_CHECK(page >= segment.next_page);
  Extent extent;
  extent.page = page;
  extent.page_count = static_cast<uint32_t>(RoundedBytes(bytes) / kPageBytes);
  extent.is_live = true;
  extent.is_recorded = is_recorded;
  segment.extents.push_back(extent);
  segment.next_page = page + extent.page_count;
  segment.live_pages += extent.page_count;
  live_bytes_ += RoundedBytes(bytes);
  ++live_count_;
}

SegmentMap::Extent* SegmentMap::Look(uint64_t offset) {
  Segment& segment = segments_[SlotOf(offset)];
  const auto found =
      std::lower_bound(segment.extents.begin(), segment.extents.end(), PageOf(offset),
                       [](const Extent& extent, uint32_t page) { return extent.page < page; });
  return found != segment.extents.end() && found->page == PageOf(offset) && found->is_live
             ? &*found
             : nullptr;
}

SegmentMap::Extent& SegmentMap::Find(uint64_t offset) {
  Extent* extent = Look(offset);
  CAIRN_CHECK(extent != nullptr);
  return *extent;
}

bool SegmentMap::Free(uint64_t offset) {
  Extent& extent = Find(offset);
  Segment& segment = segments_[SlotOf(offset)];
  extent.is_live = false;
  segment.live_pages -= extent.page_count;
  live_bytes_ -= extent.page_count * kPageBytes;
  --live_count_;
  return segment.live_pages == 0 && segment.state == State::kReclaiming;
}

void SegmentMap::Empty(uint32_t slot) {
  Segment& segment = segments_[slot];
  CAIRN_CHECK(segment.live_pages == 0 && segment.writes == 0);
  segment.extents.clear();
  segment.next_page = 1;
  segment.is_lost = false;
}

std::optional<uint32_t> SegmentMap::Least(
    State state, absl::FunctionRef<uint64_t(const Segment&)> figure) const {
  std::optional<uint32_t> least;
  for (uint32_t slot = 0; slot < slot_count(); ++slot) {
    if (segments_[slot].state == state &&
        (!least.has_value() || figure(segments_[slot]) < figure(segments_[*least]))) {
      least = slot;
    }
  }
  return least;
}

std::optional<uint32_t> SegmentMap::Oldest(State state) const {
  return Least(state, [](const Segment& segment) { return segment.seq; });
}

std::optional<uint32_t> SegmentMap::Emptiest(State state) const {
  return Least(state, [](const Segment& segment) { return segment.live_pages; });
}

std::optional<uint32_t> SegmentMap::Any(State state) const {
  for (uint32_t slot = 0; count(state) > 0 && slot < slot_count(); ++slot) {
    if (segments_[slot].state == state) {
      return slot;
    }
  }
  return std::nullopt;
}

// --- Care ----------------------------------------------------------------------------------------
// The care thread seals full segments, prepares the next one and reclaims the oldest.

bool SsdDevice::IsCareDue() const {
  return segments_->count(SegmentState::kFull) > 0 ||
         segments_->count(SegmentState::kReclaiming) > 0 ||
         segments_->count(SegmentState::kReady) < kReadyMin || IsReclaimDue();
}

void SsdDevice::RunCare() {
  pthread_setname_np(pthread_self(), "ssd-care");
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (is_stopping_) {
        return;
      }
    }
    if (SealOne() || PrepareOne() || ReclaimOne() || Probe()) {
      continue;
    }
    const absl::Time now = MonotonicNow();
    const MutexLock lock(mutex_);
    if (!is_stopping_) {
      absl::Time until = now + kRest;
      for (const absl::Time due : {reclaim_again_, probe_again_}) {
        until = due > now ? std::min(until, due) : until;
      }
      care_due_.WaitUntil(mutex_, until);
    }
  }
}

// --- Sealing -------------------------------------------------------------------------------------

bool SsdDevice::SealOne() {
  std::optional<uint32_t> slot;
  SegmentRecord record = {.seq = 0, .state = SegmentRecord::State::kSealed};
  {
    const MutexLock lock(mutex_);
    if (state_ >= State::kReadOnly) {
      return false;
    }
    for (uint32_t i = 0; i < segments_->slot_count() && !slot.has_value(); ++i) {
      if (segments_->at(i).state == SegmentState::kFull && segments_->at(i).writes == 0) {
        slot = i;
      }
    }
    if (!slot.has_value()) {
      return false;
    }
    record.seq = segments_->at(*slot).seq;
  }
  if (!SyncNow()) {
    return true;  // its bytes may be lost, or the device may have turned read-only
  }
  Ledger::Batch batch;
  batch.PutSegment(*slot, record);
  if (const absl::Status status = ledger_->Write(batch, /*is_synced=*/true); !status.ok()) {
    LedgerFailed("a segment cannot be sealed", status);
    return false;
  }
  {
    const MutexLock lock(mutex_);
    segments_->SetState(*slot, SegmentState::kSealed);
  }
  CheckLedgerSize();
  return true;
}

void SsdDevice::CheckLedgerSize() {
  if (ledger_->disk_bytes() > budget_.ledger_bytes_max / 100 * kCompactPercent) {
    if (const absl::Status status = ledger_->Compact(); !status.ok()) {
      LedgerFailed("the ledger cannot be compacted", status);
    }
  }
}

// --- Preparing -----------------------------------------------------------------------------------

bool SsdDevice::PrepareOne() {
  std::optional<uint32_t> slot;
  bool is_absent = false, is_retry = false;
  {
    const MutexLock lock(mutex_);
    const bool may_grow = MonotonicNow() >= grow_again_;
    // In state kCapped, look for room again from time to time, even if reclaim frees enough
    // segments.
    is_retry = state_ == State::kCapped && may_grow && segments_->count(SegmentState::kAbsent) > 0;
    if (!TakesImages() || (segments_->count(SegmentState::kReady) >= kReadyMin && !is_retry)) {
      return false;
    }
    if (!is_retry) {
      slot = segments_->Any(SegmentState::kClean);
    }
    is_absent = !slot.has_value();
    if (is_absent && may_grow) {
      slot = segments_->Any(SegmentState::kAbsent);
    }
    if (!slot.has_value()) {
      return false;
    }
  }
  if (is_absent) {
    if (const absl::Status status = Grow(*slot); !status.ok()) {
      const MutexLock lock(mutex_);
      grow_again_ = MonotonicNow() + kGrowAgain;
      if (state_ == State::kOk) {
        state_ = State::kCapped;
        segments_->SetCanGrow(false);
        why_ = ToStd(status.message());
        LogWarn("ssd", "no room for all segments: continues with fewer",
                {{"path", options_.path}, {"error", status}});
      }
      return is_retry;  // a clean segment may be prepared
    }
    const MutexLock lock(mutex_);
    segments_->SetState(*slot, SegmentState::kClean);
    segments_->SetCanGrow(true);
    state_ = state_ == State::kCapped ? State::kOk : state_;
  }
  if (const absl::Status status = Prepare(*slot); absl::IsUnavailable(status)) {
    return false;  // stopping
  } else if (!status.ok()) {
    {
      const MutexLock lock(mutex_);
      segments_->SetState(*slot, SegmentState::kSetAside);
    }
    CountError(*slot, IoKind::kWrite, absl::DataLossError(status.message()));
  }
  return true;
}

absl::Status SsdDevice::Grow(uint32_t slot) {
  struct statvfs space = {};
  if (::statvfs(options_.path.c_str(), &space) != 0) {
    return absl::ErrnoToStatus(errno, "statvfs");
  }
  const uint64_t free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  if (free_bytes < options_.keep_free_bytes + budget_.segment_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the file system has ", free_bytes,
                                                     " bytes left, of which ",
                                                     options_.keep_free_bytes, " are reserved"));
  }
  const std::string path = SegmentPath(slot);
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.is_valid()) {
    return absl::ErrnoToStatus(errno, path);
  }
  if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(budget_.segment_bytes));
      error != 0) {
    ::unlink(path.c_str());
    return absl::ErrnoToStatus(error, absl::StrCat("fallocate of ", path));
  }
  if (::fsync(file.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("fsync of ", path));
  }
  files_[slot] = std::move(file);
  return absl::OkStatus();
}

absl::Status SsdDevice::Prepare(uint32_t slot) {
  SegmentHeader header = {
      .tier_id = tier_id_, .slot = slot, .segment_bytes = budget_.segment_bytes};
  {
    const MutexLock lock(mutex_);
    header.seq = next_seq_++;
  }
  PageMemory page(kSegmentHeaderBytes);
  EncodeSegmentHeader(header, page.bytes().first<kSegmentHeaderBytes>());
  CAIRN_RETURN_IF_ERROR(Transfer(IoKind::kWrite, files_[slot].get(), 0, page.bytes()));
  if (::fdatasync(files_[slot].get()) != 0) {
    return absl::ErrnoToStatus(errno, "fdatasync of a header");
  }
  const MutexLock lock(mutex_);
  segments_->Empty(slot);
  segments_->at(slot).seq = header.seq;
  segments_->SetState(slot, SegmentState::kReady);
  return absl::OkStatus();
}

// --- Reclaim -------------------------------------------------------------------------------------
// The oldest segment is reused. Its images are moved ("carried") to the open segment if they were
// read since they were written, or if the index holds them. So images that are used stay. All other
// images are dropped. While less than half of the device is in use, nothing is dropped, and the
// live images of the emptiest segment are carried. If a process ended during reclaim and left no
// segment to carry to, reclaim drops images nevertheless.

std::vector<std::pair<uint32_t, ExtentRecord>> SsdDevice::RecordsOf(uint64_t seq) {
  std::vector<std::pair<uint32_t, ExtentRecord>> records;
  const absl::Status status =
      ledger_->ScanExtents(seq, seq, [&](uint64_t, uint32_t page, const ExtentRecord& record) {
        records.emplace_back(page, record);
        return true;
      });
  if (!status.ok()) {
    LedgerFailed("records cannot be read", status);
  }
  return records;
}

ImageFacts SsdDevice::FactsOf(const ExtentRecord& record) const {
  const MutexLock lock(mutex_);
  const auto space = space_ids_.find(record.space);
  return {.space_id = space == space_ids_.end() ? 0 : space->second,
          .key = record.key,
          .first_position = record.first_position,
          .tokens = record.tokens,
          .group = record.group,
          .slice = record.slice,
          .expires_unix_s = record.expires_unix_s,
          .source_bytes = record.source_bytes};
}

bool SsdDevice::IsReclaimDue() const {
  return segments_->spare_count() < kSpareMin || segments_->is_crowded();
}

bool SsdDevice::ReclaimOne() {
  std::optional<uint32_t> slot;
  {
    const MutexLock lock(mutex_);
    if (!TakesImages()) {
      return false;
    }
    slot = segments_->Oldest(SegmentState::kReclaiming);
    if (slot.has_value() && segments_->at(*slot).live_pages > 0 &&
        MonotonicNow() < reclaim_again_) {
      slot.reset();
    }
    if (!slot.has_value() && IsReclaimDue() && segments_->count(SegmentState::kReclaiming) == 0) {
      slot = segments_->is_roomy() ? segments_->Emptiest(SegmentState::kSealed)
                                   : segments_->Oldest(SegmentState::kSealed);
      if (slot.has_value()) {
        segments_->SetState(*slot, SegmentState::kReclaiming);
      }
    }
    if (!slot.has_value()) {
      return false;
    }
  }
  Reclaim(*slot);
  return FinishReclaim(*slot);
}

void SsdDevice::Reclaim(uint32_t slot) {
  uint64_t seq = 0;
  bool is_roomy = false;
  EvictionReason reason = EvictionReason::kCapacity;
  {
    const MutexLock lock(mutex_);
    seq = segments_->at(slot).seq;
    is_roomy = segments_->is_roomy();
    if (segments_->spare_count() >= kSpareMin && segments_->is_crowded()) {
      reason = EvictionReason::kIndex;
    }
    if (segments_->at(slot).live_pages == 0) {
      return;
    }
  }
  uint64_t carried = 0;
  for (const auto& [page, record] : RecordsOf(seq)) {
    bool is_live = false, is_hit = false;
    uint64_t offset = 0;
    {
      const MutexLock lock(mutex_);
      if (is_stopping_) {
        return;
      }
      offset = segments_->OffsetOf(slot, page);
      const SegmentMap::Extent* extent = segments_->Look(offset);
      is_live = extent != nullptr;
      is_hit = is_live && extent->is_hit;
    }
    if (!is_live) {
      continue;
    }
    const ImageFacts facts = FactsOf(record);
    const bool is_kept = (is_hit || is_roomy || evictor_->IsRetained(facts)) &&
                         carried < budget_.segment_bytes / 100 * kCarriedPercentMax;
    if (!is_kept && evictor_->EvictCopy(TierId::kSsd, facts, TierOffset(offset), reason)) {
      continue;
    }
    const Carried result = Carry(slot, page, record, facts);
    carried += result == Carried::kCarried ? record.image_bytes : 0;
    const bool is_passed =
        result == Carried::kNowhere
            ? evictor_->EvictCopy(TierId::kSsd, facts, TierOffset(offset), reason)
            : result != Carried::kLater;
    if (!is_passed) {
      break;
    }
  }
}

SsdDevice::Carried SsdDevice::Carry(uint32_t slot, uint32_t page, const ExtentRecord& record,
                                    const ImageFacts& facts) {
  uint64_t from = 0, id = 0;
  {
    const MutexLock lock(mutex_);
    from = segments_->OffsetOf(slot, page);
    // If the image was deleted before this point, nothing is carried. A later deletion waits until
    // this write has ended.
    const SegmentMap::Extent* extent = segments_->Look(from);
    if (extent == nullptr || !extent->is_recorded) {
      return Carried::kDropped;
    }
    id = BeginWrite();
  }
  const Carried result = CopyAlong(from, record, facts);
  const MutexLock lock(mutex_);
  EndWrite(id);
  return result;
}

SsdDevice::Carried SsdDevice::CopyAlong(uint64_t from, const ExtentRecord& record,
                                        const ImageFacts& facts) {
  const uint64_t bytes = record.image_bytes, rounded = SegmentMap::RoundedBytes(bytes);
  const auto slot = static_cast<uint32_t>(from / budget_.segment_bytes);
  const PageMemory memory(rounded);
  const absl::Status read =
      Transfer(IoKind::kRead, files_[slot].get(), from % budget_.segment_bytes, memory.bytes());
  if (absl::IsUnavailable(read)) {
    return Carried::kLater;
  }
  if (!read.ok() || !IsImageOf(record, memory.bytes().first(bytes))) {
    CountError(slot, IoKind::kRead, read);
    corrupt_.Add();
    LogWarn("ssd", "image is damaged: dropped",
            {{"path", options_.path},
             {"place", FormatPlace(TierId::kSsd, TierOffset(from))},
             {"key", proto::Hex(std::span(record.key).first(4))}});
    evictor_->LoseCopy(TierId::kSsd, facts, TierOffset(from));
    return Carried::kDropped;
  }
  std::optional<uint64_t> place;
  bool is_nowhere = false;
  int fd = -1;
  {
    const MutexLock lock(mutex_);
    place = segments_->Allocate(bytes, /*is_carried=*/true);
    is_nowhere = !place.has_value() && segments_->spare_count() == 0;
    if (place.has_value()) {
      ++segments_->at(segments_->SlotOf(*place)).writes;
      fd = files_[segments_->SlotOf(*place)].get();
    } else {
      reclaim_again_ = MonotonicNow() + kReclaimAgain;
    }
  }
  if (!place.has_value()) {
    return is_nowhere ? Carried::kNowhere : Carried::kLater;
  }
  TierExtent to(tier_, TierOffset(*place), bytes, rounded);
  Written written;
  written.offset = *place;
  written.record = record;
  absl::Status status =
      Transfer(IoKind::kWrite, fd, *place % budget_.segment_bytes, memory.bytes());
  if (!status.ok()) {
    written.done = [](absl::Status) {};
    Landed(std::move(written), std::move(status));
    return Carried::kLater;
  }
  if (!CommitNow(std::move(written)).ok()) {
    return Carried::kLater;
  }
  return Move(from, to, facts);
}

SsdDevice::Carried SsdDevice::Move(uint64_t from, TierExtent& to, const ImageFacts& facts) {
  const uint64_t place = DeviceOffset(to.offset());
  {
    const MutexLock lock(mutex_);
    moving_from_ = from;
    moved_from_[place] = {segments_->at(segments_->SlotOf(from)).seq, segments_->PageOf(from)};
  }
  const Evictor::Moved moved = evictor_->MoveCopy(TierId::kSsd, facts, TierOffset(from), to);
  if (moved == Evictor::Moved::kMoved && IsLost(place / budget_.segment_bytes)) {
    // The segment was lost after the record was written, and LoseCopies() missed this copy.
    evictor_->LoseCopy(TierId::kSsd, facts, TierOffset(place));
  }
  const MutexLock lock(mutex_);
  moving_from_.reset();
  if (moved == Evictor::Moved::kMoved) {
    return Carried::kCarried;
  }
  moved_from_.erase(place);
  if (segments_->Look(from) == nullptr) {
    QueueFreed(from);  // it was freed meanwhile, so it was not moved
  }
  if (moved == Evictor::Moved::kGone) {
    return Carried::kDropped;
  }
  reclaim_again_ = MonotonicNow() + kReclaimAgain;
  return Carried::kLater;
}

bool SsdDevice::FinishReclaim(uint32_t slot) {
  uint64_t seq = 0;
  {
    const MutexLock lock(mutex_);
    if (segments_->at(slot).live_pages > 0 || segments_->at(slot).writes > 0) {
      reclaim_again_ = MonotonicNow() + kReclaimAgain;
      return false;
    }
    seq = segments_->at(slot).seq;
  }
  // The carried images must be durable first. If some were lost, the segment is tried again later.
  if (!SyncNow()) {
    const MutexLock lock(mutex_);
    reclaim_again_ = MonotonicNow() + kReclaimAgain;
    return false;
  }
  Ledger::Batch batch;
  batch.DeleteExtentsOf(seq);
  batch.DeleteSegment(slot);
  if (const absl::Status status = ledger_->Write(batch, /*is_synced=*/true); !status.ok()) {
    LedgerFailed("a segment cannot be reclaimed", status);
    return false;
  }
  reclaims_.Add();
  const MutexLock lock(mutex_);
  absl::erase_if(moved_from_, [seq](const auto& moved) { return moved.second.seq == seq; });
  segments_->SetState(slot, SegmentState::kClean);
  return true;
}

// --- Mend ----------------------------------------------------------------------------------------
// After a fault the device is read-only and tests itself, with growing pauses. After failed writes
// of segments, the device works again once one segment accepts a header. A failed ledger is
// reopened and compared with the map of segments.

void SsdDevice::TurnReadOnly(std::string_view why, const absl::Status& status) {
  {
    const MutexLock lock(mutex_);
    if (state_ >= State::kReadOnly) {
      return;
    }
    state_ = State::kReadOnly;
    why_ = absl::StrCat(ToAbsl(why), ": ", status.message());
    probe_rest_ = options_.probe_after / kFirstTryShare;
    probe_again_ = MonotonicNow() + probe_rest_;
    care_due_.NotifyOne();
  }
  LogError("ssd", "device takes no more writes; reads continue",
           {{"path", options_.path}, {"what", why}, {"error", status}});
}

void SsdDevice::LedgerFailed(std::string_view why, const absl::Status& status) {
  {
    const MutexLock lock(mutex_);
    is_ledger_failed_ = true;
  }
  TurnReadOnly(why, status);
}

void SsdDevice::GoOut(std::string_view why, const absl::Status& status) {
  {
    const MutexLock lock(mutex_);
    state_ = State::kOut;
    why_ = absl::StrCat(ToAbsl(why), ": ", status.message());
  }
  LogError("ssd", "device is out: opening it again",
           {{"path", options_.path}, {"what", why}, {"error", status}});
}

bool SsdDevice::Probe() {
  bool is_ledger_failed = false;
  {
    const MutexLock lock(mutex_);
    is_ledger_failed = is_ledger_failed_;
    if (state_ != State::kReadOnly || (is_retired_ && !is_ledger_failed) ||
        MonotonicNow() < probe_again_) {
      return false;
    }
    probe_rest_ = std::min(2 * probe_rest_, options_.probe_after);
    probe_again_ = MonotonicNow() + probe_rest_;
    is_trying_ = true;
  }
  bool is_mended = false;
  if (IsFolderGone()) {
    GoOut("the folder is gone, or another one", absl::NotFoundError(options_.path));
  } else {
    is_mended = is_ledger_failed ? MendLedger() : TryOne();
  }
  const MutexLock lock(mutex_);
  is_trying_ = false;
  return is_mended;
}

bool SsdDevice::IsFolderGone() const {
  struct stat held = {}, named = {};
  return ::fstat(lock_file_.get(), &held) != 0 ||
         ::stat(absl::StrCat(options_.path, "/LOCK").c_str(), &named) != 0 ||
         held.st_dev != named.st_dev || held.st_ino != named.st_ino;
}

// --- Mend: segments ------------------------------------------------------------------------------

bool SsdDevice::TryOne() {
  std::optional<uint32_t> slot;
  uint64_t seq = 0;
  {
    const MutexLock lock(mutex_);
    for (uint32_t i = 0; i < segments_->slot_count() && !slot.has_value(); ++i) {
      const SegmentMap::Segment& segment = segments_->at(i);
      if (segment.state == SegmentState::kSetAside && segment.live_pages == 0 &&
          segment.writes == 0 && files_[i].is_valid()) {
        slot = i;
        seq = segment.seq;
      }
    }
  }
  // The segment has no live images, so delete its remaining records.
  Ledger::Batch batch;
  if (seq != 0) {
    batch.DeleteExtentsOf(seq);
  }
  if (!slot.has_value()) {
    return false;
  }
  if (const absl::Status status = ledger_->Write(batch, /*is_synced=*/true); !status.ok()) {
    LedgerFailed("the ledger failed a write", status);  // it accepts no writes until it is reopened
    return false;
  }
  if (!Prepare(*slot).ok()) {
    return false;
  }
  {
    const MutexLock lock(mutex_);
    state_ = State::kOk;
    probe_again_ = absl::InfiniteFuture();
    // The other segments will be sealed. If sealing fails, a segment is lost. Lost segments are
    // emptied.
    for (uint32_t i = 0; i < segments_->slot_count(); ++i) {
      const SegmentMap::Segment& segment = segments_->at(i);
      if (segment.state == SegmentState::kSetAside && files_[i].is_valid()) {
        segments_->SetState(i, segment.is_lost         ? SegmentState::kReclaiming
                               : segment.next_page > 1 ? SegmentState::kFull
                                                       : SegmentState::kClean);
      }
    }
  }
  LogInfo("ssd", "device takes writes again", {{"path", options_.path}});
  return true;
}

// --- Mend: the ledger ----------------------------------------------------------------------------

bool SsdDevice::MendLedger() {
  {
    const MutexLock lock(mutex_);
    is_mending_ = true;  // the commit thread begins no round
  }
  const absl::Status status = ReopenLedger();
  bool is_mended = false;
  {
    const MutexLock lock(mutex_);
    is_mending_ = false;
    commit_due_.NotifyOne();
    if (status.ok()) {
      is_ledger_failed_ = false;
      // If segments have failed meanwhile, test them at once.
      is_mended = segments_->count(SegmentState::kSetAside) < kSetAsideMax;
      state_ = is_mended ? State::kOk : state_;
      probe_again_ = is_mended ? absl::InfiniteFuture() : MonotonicNow();
    } else {
      why_ = absl::StrCat("the ledger cannot be opened anew: ", status.message());
    }
    committed_.NotifyAll();
  }
  if (absl::IsDataLoss(status)) {
    GoOut("the ledger is damaged", status);
  } else if (is_mended) {
    LogInfo("ssd", "device takes writes again: its ledger was reopened", {{"path", options_.path}});
  }
  return status.ok();
}

absl::Status SsdDevice::ReopenLedger() {
  const absl::Time deadline = MonotonicNow() + kLedgerWait;
  {
    const MutexLock lock(mutex_);
    while (is_committing_) {
      if (!committed_.WaitUntil(mutex_, deadline)) {
        return absl::UnavailableError("a write to it does not complete");
      }
    }
  }
  CAIRN_RETURN_IF_ERROR(ledger_->Reopen(deadline));
  CAIRN_RETURN_IF_ERROR(CheckOwner());
  Ledger::Batch batch;
  if (const absl::Status recorded = RecordAllDeletions(batch); !recorded.ok()) {
    return absl::UnavailableError(recorded.message());  // the ledger may be intact
  }
  CAIRN_RETURN_IF_ERROR(CompareLedger(batch));
  SyncUnsealed();  // the write below deletes old places of moved images; no round runs now
  return ledger_->Write(batch, /*is_synced=*/true);
}

absl::Status SsdDevice::CompareLedger(Ledger::Batch& batch) {
  struct Segment {
    uint32_t slot = 0;
    uint32_t recorded = 0;  // the number of its extents that the ledger should have
  };
  absl::flat_hash_map<uint64_t, Segment> by_seq;
  {
    const MutexLock lock(mutex_);
    for (uint32_t slot = 0; slot < segments_->slot_count(); ++slot) {
      const SegmentMap::Segment& segment = segments_->at(slot);
      Segment& known = by_seq[segment.seq];
      known.slot = slot;
      for (const SegmentMap::Extent& extent : segment.extents) {
        known.recorded += extent.is_live && extent.is_recorded ? 1 : 0;
      }
    }
    for (auto& [fingerprint, space] : spaces_) {
      space.version = 0;  // writes the space again with its next image
    }
  }
  CAIRN_RETURN_IF_ERROR(
      ledger_->ScanExtents(0, UINT64_MAX, [&](uint64_t seq, uint32_t page, const ExtentRecord&) {
        const auto found = by_seq.find(seq);
        const MutexLock lock(mutex_);
        if (unread_.contains({.seq = seq, .page = page})) {
          return true;
        }
        const SegmentMap::Extent* extent =
            found == by_seq.end() ? nullptr
                                  : segments_->Look(segments_->OffsetOf(found->second.slot, page));
        if (extent == nullptr || !extent->is_recorded) {
          batch.DeleteExtent(seq, page);  // the extent was freed, or its write failed
        } else if (found->second.recorded > 0) {
          --found->second.recorded;
        }
        return true;
      }));
  for (const auto& [seq, segment] : by_seq) {
    if (segment.recorded > 0) {  // the next process would not find all extents
      const uint64_t begin = segment.slot * budget_.segment_bytes;
      evictor_->LoseCopies(TierId::kSsd, TierOffset(begin),
                           TierOffset(begin + budget_.segment_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace cairn
