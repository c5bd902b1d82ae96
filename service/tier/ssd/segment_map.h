// SPDX-License-Identifier: Apache-2.0
#pragma once
// What lies where on one device, in memory: segments in their slots, and extents in segments.
//
//   kAbsent ──▶ kClean ──▶ kReady ──▶ kOpen ──▶ kFull ──▶ kSealed ──▶ kReclaiming ──▶ kClean
//                  header durable  takes extents      durable     emptied
//
// A segment whose device failed a write is set aside, and is not used again. One whose flush failed
// is lost besides: nothing in it is believed. One clean or ready segment is kept for the extents
// that reclaim carries along.
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
    kFull,  // to be sealed once its writes are over
    kSealed,
    kReclaiming,
    kSetAside,
  };
  static constexpr size_t kStateCount = 8;
  // One that is open, those that reclaim has, and some that hold.
  static constexpr uint32_t kSlotsMin = 6;

  struct Extent {
    uint32_t page = 0;
    uint32_t page_count : 29 = 0;
    bool is_live : 1 = false;      // somebody has its place
    bool is_recorded : 1 = false;  // the ledger knows it
    bool is_hit : 1 = false;       // read since it was written
  };
  struct Segment {
    State state = State::kAbsent;
    bool is_lost = false;    // a flush of it failed, until it is written from its beginning
    uint64_t seq = 0;        // of its header
    uint32_t next_page = 1;  // the first is the header
    uint32_t writes = 0;     // under way, until the ledger has them
    uint32_t live_pages = 0;
    std::vector<Extent> extents;  // by page
  };

  // `extents_max`: at once, of the device.
  SegmentMap(uint32_t slot_count, uint64_t segment_bytes, uint64_t extents_max);

  uint64_t segment_bytes() const { return segment_bytes_; }
  // The largest extent.
  uint64_t extent_bytes_max() const { return segment_bytes_ / 4; }
  uint32_t slot_count() const { return static_cast<uint32_t>(segments_.size()); }
  const Segment& at(uint32_t slot) const { return segments_[slot]; }
  Segment& at(uint32_t slot) { return segments_[slot]; }
  size_t count(State state) const { return counts_[static_cast<size_t>(state)]; }
  void SetState(uint32_t slot, State state);
  // Segments that are free to be written. Those that have no file count while they can get one.
  size_t spare_count() const;
  void SetCanGrow(bool can_grow) { can_grow_ = can_grow; }

  // Where an extent lies. The first byte of the device has offset 0.
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

  // Room for an extent in the open segment, else in the next that is ready. The last spare one is
  // for what is carried along alone, until another comes free: a process that ends meanwhile leaves
  // it sealed. nullopt: no segment is ready, or there are too many extents, which what is carried
  // along may exceed until its old place is freed.
  std::optional<uint64_t> Allocate(uint64_t bytes, bool is_carried);
  // As it lay there when the process before ended. REQUIRES: in the order of pages.
  void Restore(uint32_t slot, uint32_t page, uint64_t bytes);
  // Null: none begins there, or it does not live.
  Extent* Look(uint64_t offset);
  // REQUIRES: it lives.
  Extent& Find(uint64_t offset);
  // Nobody has the place any more. Returns true if that was the last of a segment that is being
  // reclaimed.
  bool Free(uint64_t offset);

  // To be written from its beginning. REQUIRES: nothing in it lives.
  void Empty(uint32_t slot);

  // The segment written before all others that are in that state.
  std::optional<uint32_t> Oldest(State state) const;
  // That with the fewest bytes that live.
  std::optional<uint32_t> Emptiest(State state) const;
  std::optional<uint32_t> Any(State state) const;

  uint64_t live_bytes() const { return live_bytes_; }
  uint64_t live_count() const { return live_count_; }
  // There are so many extents that some have to go before there is room for many more.
  bool is_crowded() const { return live_count_ >= extents_max_ - extents_max_ / 16; }
  // Less than half of the segments' bytes live: what is dead among them comes free without anything
  // that has to go.
  bool is_roomy() const;

 private:
  // Behind all extents of the segment.
  void Add(Segment& segment, uint32_t page, uint64_t bytes, bool is_recorded);
  // The first of the segments in that state for which `figure` is least.
  std::optional<uint32_t> Least(State state,
                                absl::FunctionRef<uint64_t(const Segment&)> figure) const;

  const uint64_t segment_bytes_, extents_max_;
  bool can_grow_ = true;
  std::vector<Segment> segments_;
  std::array<size_t, kStateCount> counts_{};
  std::optional<uint32_t> open_;  // the slot that takes extents
  uint64_t live_bytes_ = 0, live_count_ = 0;
};

}  // namespace cairn
