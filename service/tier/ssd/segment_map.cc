// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/segment_map.h"

#include <algorithm>

#include "base/check.h"

namespace cairn {

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
    segments_[slot].extents.shrink_to_fit();  // it gets no more
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
    // What is open is not reclaimed: where all of them are in there, it is to be closed.
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

}  // namespace cairn
