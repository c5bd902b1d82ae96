// SPDX-License-Identifier: Apache-2.0
#pragma once
// The map of one device, in memory: the segments in their slots, and the extents in the segments.
//
//   kAbsent ──▶ kClean ──▶ kReady ──▶ kOpen ──▶ kFull ──▶ kSealed ──▶ kReclaiming ──▶ kClean
//                  header durable  takes extents      durable     emptied
//
// A segment with a failed write is set aside and not used again. A segment with a failed flush is
// also lost: none of its bytes are trusted. One clean or ready segment is always reserved for
// extents that reclaim moves.
//
// Thread-safety: Thread-compatible (the device's lock).
// Cost:          12 bytes per extent. Allocate O(1), Find O(log extents of a segment).

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "service/tier/ssd/io_engine.h"

namespace cairn {

class SegmentMap {
 public:
  enum class State : uint8_t {
    kAbsent,  // no file
    kClean,
    kReady,
    kOpen,
    kFull,  // sealed once its writes have completed
    kSealed,
    kReclaiming,
    kSetAside,
  };
  static constexpr size_t kStateCount = 8;
  // The smallest number of segments. One is open, reclaim needs some, and some have data.
  static constexpr uint32_t kSlotsMin = 6;

  struct Extent {
    uint32_t page = 0;
    uint32_t page_count : 29 = 0;
    bool is_live : 1 = false;      // its place is in use
    bool is_recorded : 1 = false;  // the ledger has it
    bool is_hit : 1 = false;       // read since it was written
  };
  struct Segment {
    State state = State::kAbsent;
    bool is_lost = false;    // a flush failed; reset when the segment is written again
    uint64_t seq = 0;        // its number, as in its header
    uint32_t next_page = 1;  // page 0 is the header
    uint32_t writes = 0;     // running writes that the ledger does not have yet
    uint32_t live_pages = 0;
    std::vector<Extent> extents;  // in ascending order of pages
  };

  // `extents_max` is the limit for the extents of the device.
  SegmentMap(uint32_t slot_count, uint64_t segment_bytes, uint64_t extents_max);

  uint64_t segment_bytes() const { return segment_bytes_; }
  // The size of the largest extent.
  uint64_t extent_bytes_max() const { return segment_bytes_ / 4; }
  uint32_t slot_count() const { return static_cast<uint32_t>(segments_.size()); }
  const Segment& at(uint32_t slot) const { return segments_[slot]; }
  Segment& at(uint32_t slot) { return segments_[slot]; }
  size_t count(State state) const { return counts_[static_cast<size_t>(state)]; }
  void SetState(uint32_t slot, State state);
  // The number of segments that can be written. A segment without a file counts if files can grow.
  size_t spare_count() const;
  void SetCanGrow(bool can_grow) { can_grow_ = can_grow; }

  // Returns the slot of an extent. The first byte of the device has offset 0.
  uint32_t SlotOf(uint64_t offset) const { return static_cast<uint32_t>(offset / segment_bytes_); }
  uint32_t PageOf(uint64_t offset) const {
    return static_cast<uint32_t>(offset % segment_bytes_ / kPageBytes);
  }
  uint64_t OffsetOf(uint32_t slot, uint32_t page) const {
    return slot * segment_bytes_ + page * kPageBytes;
  }
  static uint64_t RoundedBytes(uint64_t bytes) {
    return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  }

  // Allocates an extent in the open segment, or else in the next ready one. Until another segment
  // becomes free, the last spare segment is reserved for extents that reclaim moves. (If the
  // process ends meanwhile, the segment stays sealed.) Returns nullopt if no segment is ready or
  // there are too many extents. Moved extents may exceed this limit until their old places are
  // freed.
  std::optional<uint64_t> Allocate(uint64_t bytes, bool is_carried);
  // Adds an extent of the previous process. REQUIRES: called in ascending order of pages.
  void Restore(uint32_t slot, uint32_t page, uint64_t bytes);
  // Returns null if no live extent begins there.
  Extent* Look(uint64_t offset);
  // REQUIRES: a live extent begins there.
  Extent& Find(uint64_t offset);
  // Marks the extent as dead. Returns true if it was the last live extent of a segment that is
  // being reclaimed.
  bool Free(uint64_t offset);

  // Makes the segment writable again. REQUIRES: it has no live extent.
  void Empty(uint32_t slot);

  // Returns the oldest segment in that state.
  std::optional<uint32_t> Oldest(State state) const;
  // Returns the segment with the fewest live bytes.
  std::optional<uint32_t> Emptiest(State state) const;
  std::optional<uint32_t> Any(State state) const;

  uint64_t live_bytes() const { return live_bytes_; }
  uint64_t live_count() const { return live_count_; }
  // Returns true if extents must be freed soon, because their number is close to the limit.
  bool is_crowded() const { return live_count_ >= extents_max_ - extents_max_ / 16; }
  // Returns true if less than half of the segments' bytes are live. Reclaim then frees room without
  // evicting.
  bool is_roomy() const;

 private:
  // Adds an extent after all others of the segment.
  void Add(Segment& segment, uint32_t page, uint64_t bytes, bool is_recorded);
  // Returns the first segment in that state with the smallest `figure`.
  std::optional<uint32_t> Least(State state,
                                absl::FunctionRef<uint64_t(const Segment&)> figure) const;

  const uint64_t segment_bytes_, extents_max_;
  bool can_grow_ = true;
  std::vector<Segment> segments_;
  std::array<size_t, kStateCount> counts_{};
  std::optional<uint32_t> open_;  // the slot in which extents are allocated
  uint64_t live_bytes_ = 0, live_count_ = 0;
};

}  // namespace cairn
