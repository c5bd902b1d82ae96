// SPDX-License-Identifier: Apache-2.0
// The oldest segment is reused. Images that were read since they were written are moved to the open
// segment, so that the order of writing becomes an order of use; so are images that the index
// holds. All others are dropped. While less than half of the device is in use nothing has to: what
// deletions and ends of the process have left of the emptiest segment is carried along. Where a
// process ended meanwhile, and left no segment to carry to, images go all the same.
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/block_key.h"
#include "service/tier/ssd/device.h"

namespace cairn {
namespace {

using SegmentState = SegmentMap::State;

// Segments that reclaim leaves for what it carries, beside the one that is kept for it alone.
constexpr size_t kSpareMin = 3;
// Of a segment, by images that were read; what the index holds is carried whatever it takes.
constexpr uint64_t kCarriedPercentMax = 90;
// A segment that somebody still reads is looked at again.
constexpr absl::Duration kReclaimAgain = absl::Milliseconds(50);

}  // namespace

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
    const bool is_kept =
        (is_hit || is_roomy) && carried < budget_.segment_bytes / 100 * kCarriedPercentMax;
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
    // A deletion comes before this, and nothing is carried, or waits until this write is over.
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
    // Since it was recorded: what was lost with the segment did not have the copy yet.
    evictor_->LoseCopy(TierId::kSsd, facts, TierOffset(place));
  }
  const MutexLock lock(mutex_);
  moving_from_.reset();
  if (moved == Evictor::Moved::kMoved) {
    return Carried::kCarried;
  }
  moved_from_.erase(place);
  if (segments_->Look(from) == nullptr) {
    QueueFreed(from);  // it was freed meanwhile, and not moved
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
  if (!SyncNow()) {  // what was carried along is there, or else it is lost, and the rest is tried
                     // again
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

}  // namespace cairn
