// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tracks which pages of an arena are free, and which owner each range has. It uses boundary tags in
// one array with an entry per 4 KiB page, and lists of free ranges by size class. It does not
// access the arena's memory. All numbers are in pages.
//
// Thread-safety: Thread-compatible.
// Cost:          Take, Return and Shrink O(1); CheapestWindow O(ranges examined). Allocates only in
//               its constructor, and for the result of CheapestWindow().

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"

namespace cairn {

// The use of an extent. Each use has its own budget.
enum class Use : uint8_t {
  kPlaced = 0,   // an image of the host tier, published or to be published
  kStaging = 1,  // an incoming payload, or an outgoing answer
};
inline constexpr size_t kUseCount = 2;

class RangeMap {
 public:
  static constexpr uint64_t kPageBytes = 4096;
  static constexpr uint32_t kPagesMax = (uint32_t{1} << 30) - 1;

  // Rounds up to the next number with at most 5 significant bits: 16 steps per doubling.
  static uint64_t RoundUp(uint64_t pages);

  RangeMap() = default;
  // Makes a map in which all pages are free. REQUIRES: pages <= kPagesMax.
  explicit RangeMap(uint32_t pages);

  // Takes a free range of exactly `pages` pages, and returns its first page. REQUIRES: pages ==
  // RoundUp(pages), not 0.
  std::optional<uint32_t> Take(uint32_t pages, Use use);
  // REQUIRES, for this function and those below: `first` is the first page of a taken range.
  void Return(uint32_t first);
  // Frees the pages after the first `pages`. REQUIRES: 0 < pages <= the number of pages of the
  // range.
  void Shrink(uint32_t first, uint32_t pages);
  uint32_t PagesOf(uint32_t first) const;
  Use UseOf(uint32_t first) const;
  void SetUse(uint32_t first, Use use);
  void SetOwner(uint32_t first, void* owner);

  uint32_t largest_free() const;
  // Does the same as Arena::CheapestWindow().
  std::vector<void*> CheapestWindow(uint32_t pages, size_t ranges_max,
                                    absl::FunctionRef<uint64_t(void*)> cost,
                                    uint32_t* pages_passed);

 private:
  enum State : uint32_t { kInside = 0, kFree = 1, kTakenPlaced = 2, kTakenStaging = 3 };
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kClassCount = 448;  // enough for sizes below 2^30 pages

  // There is one entry per page. For the first page of a range, all fields are valid. For its last
  // page, only tail_pages is valid.
  struct Entry {
    uint32_t pages : 30;
    uint32_t state : 2;
    uint32_t tail_pages;  // pages of the free range that ends here; 0: none
    union {
      struct {
        uint32_t next, previous;  // links in the list of its class
      } free;
      void* owner;
    };
  };
  static_assert(sizeof(Entry) == 16);

  static uint32_t ClassOf(uint32_t pages);
  static State TakenAs(Use use) { return use == Use::kPlaced ? kTakenPlaced : kTakenStaging; }
  bool is_taken(uint32_t first) const { return entries_[first].state >= kTakenPlaced; }
  uint32_t FirstClassFrom(uint32_t index) const;  // kNone if all are empty
  void Link(uint32_t first, uint32_t pages);
  void Unlink(uint32_t first);
  void Free(uint32_t first, uint32_t pages);
  // Returns the cost of evicting the range at `first`. Returns nullopt if it is not evictable.
  std::optional<uint64_t> CostOf(uint32_t first, absl::FunctionRef<uint64_t(void*)> cost) const;

  std::vector<Entry> entries_;
  uint32_t hand_ = 0;  // the range where the next search for a window starts
  std::array<uint32_t, kClassCount> heads_{};
  std::array<uint64_t, kClassCount / 64> nonempty_{};
};

}  // namespace cairn
