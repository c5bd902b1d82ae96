// SPDX-License-Identifier: Apache-2.0
#pragma once
// The map of one device in memory: segments in their slots, and extents in segments.
//
//   kAbsent ──▶ kClean ──▶ kReady ──▶ kOpen ──▶ kFull ──▶ kSealed ──▶ kReclaiming ──▶ kClean
//                  header durable  takes extents      durable     emptied
//
// A segment with a failed write is set aside and not used again. A segment with a failed flush is
// also lost: none of its bytes are trusted. One clean or ready segment is reserved for the extents
// that reclaim moves.
//
// Thread-safety: Thread-compatible (the device's lock).
// Cost:          12 bytes an extent. Allocate O(1), Find O(log extents of a segment).

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
    kFull,  // to be sealed once its writes have completed
    kSealed,
    kReclaiming,
    kSetAside,
  };
  static constexpr size_t kStateCount = 8;
  // Smallest number of segments: one is open, reclaim needs some, and some hold data.
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
    bool is_lost = false;    // a flush failed; until it is rewritten from the beginning
    uint64_t seq = 0;        // of its header
    uint32_t next_page = 1;  // page 0 is the header
    uint32_t writes = 0;     // running, until the ledger has them
    uint32_t live_pages = 0;
    std::vector<Extent> extents;  // by page
  };

  // `extents_max`: limit for the extents of the device.
  SegmentMap(uint32_t slot_count, uint64_t segment_bytes, uint64_t extents_max);

  uint64_t segment_bytes() const { return segment_bytes_; }
  // The largest extent.
  uint64_t extent_bytes_max() const { return segment_bytes_ / 4; }
  uint32_t slot_count() const { return static_cast<uint32_t>(segments_.size()); }
  const Segment& at(uint32_t slot) const { return segments_[slot]; }
  Segment& at(uint32_t slot) { return segments_[slot]; }
  size_t count(State state) const { return counts_[static_cast<size_t>(state)]; }
  void SetState(uint32_t slot, State state);
  // Segments that can be written. A segment without a file counts while files can grow.
  size_t spare_count() const;
  void SetCanGrow(bool can_grow) { can_grow_ = can_grow; }

  // The slot of an extent. The first byte of the device has offset 0.
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

  // Allocates an extent in the open segment, else in the next ready one. The last spare segment is
  // reserved for extents that reclaim moves, until another becomes free; if the process ends
  // meanwhile it is left sealed. Returns nullopt if no segment is ready or there are too many
  // extents. Moved extents may exceed that limit until their old place is freed.
  std::optional<uint64_t> Allocate(uint64_t bytes, bool is_carried);
  // Adds an extent of the previous process. REQUIRES: in the order of pages.
  void Restore(uint32_t slot, uint32_t page, uint64_t bytes);
  // Returns null if no live extent begins there.
  Extent* Look(uint64_t offset);
  // REQUIRES: there is a live one.
  Extent& Find(uint64_t offset);
  // Marks the extent as dead. Returns true if that was the last live one of a segment being
  // reclaimed.
  bool Free(uint64_t offset);

  // Marks the segment as free to be rewritten. REQUIRES: it has no live extent.
  void Empty(uint32_t slot);

  // Returns the oldest segment in that state.
  std::optional<uint32_t> Oldest(State state) const;
  // Returns the segment with the fewest live bytes.
  std::optional<uint32_t> Emptiest(State state) const;
  std::optional<uint32_t> Any(State state) const;

  uint64_t live_bytes() const { return live_bytes_; }
  uint64_t live_count() const { return live_count_; }
  // Returns true if extents must be freed before there is room for many more.
  bool is_crowded() const { return live_count_ >= extents_max_ - extents_max_ / 16; }
  // Returns true if less than half of the segments' bytes are live: reclaim then frees room without
  // evicting.
  bool is_roomy() const;

 private:
  // Adds an extent behind all others of the segment.
  void Add(Segment& segment, uint32_t page, uint64_t bytes, bool is_recorded);
  // Returns the first segment in that state with the least `figure`.
  std::optional<uint32_t> Least(State state,
                                absl::FunctionRef<uint64_t(const Segment&)> figure) const;

  const uint64_t segment_bytes_, extents_max_;
  bool can_grow_ = true;
  std::vector<Segment> segments_;
  std::array<size_t, kStateCount> counts_{};
  std::optional<uint32_t> open_;  // the slot that extents are allocated in
  uint64_t live_bytes_ = 0, live_count_ = 0;
};

}  // namespace cairn
