// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory for blocks: one mapping, which is allocated in full at start and divided into extents.
// It is anonymous memory, or a memfd that other processes may map for reading. Sizes are rounded up
// to one of 16 steps per doubling, in units of 4 KiB, so that a freed extent fits a later one.
// Adjacent free ranges are merged. A request takes a free range of the smallest size class that
// fits. Extents never move.
//
// Thread-safety: Thread-safe: the Arena and distinct Extents.
// Ownership:     an Extent owns its bytes. The Arena must outlive it (CAIRN_CHECKed).
// Cost:          O(log free ranges) per call; no system call after construction.
// Accounting:    exact: for every Use, used_bytes is the sum of rounded_bytes() of its extents.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/handle.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/memory/fault_in.h"
#include "service/memory/range_map.h"

namespace cairn {

class Arena;

// Rounds up to a size that the arena can allocate: a multiple of 4 KiB with at most 5 significant
// bits.
uint64_t RoundedExtentBytes(uint64_t bytes);

// An owned range of an arena. Move-only; empty when default-constructed or moved from.
// Thread-safety: Thread-compatible.
class Extent {
 public:
  Extent() = default;

  bool is_empty() const { return handle_.is_empty(); }
  std::span<std::byte> bytes() const;
  uint64_t size_bytes() const { return handle_.value().bytes; }  // the requested size
  uint64_t rounded_bytes() const { return is_empty() ? 0 : RoundedExtentBytes(size_bytes()); }
  uint64_t offset() const { return handle_.value().offset; }  // in the arena; logs print it

  // Makes the extent evictable and sets its owner. With nullptr, the default, it is not evictable.
  void SetOwner(void* owner);
  // Frees the bytes after the first `bytes`. REQUIRES: 0 < bytes <= size_bytes().
  void ShrinkTo(uint64_t bytes);
  // Frees the bytes. The extent is then empty.
  void Reset() { handle_.Reset(); }

 private:
  friend class Arena;
  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  Extent(Arena& arena, Range range) : handle_(arena, range) {}
  static void Release(Arena& arena, Range range);
  Handle<Arena, Range, &Extent::Release> handle_;
};

class Arena {
 public:
  struct Options {
    // One budget for each use. The mapping has the size of their sum, rounded up to 2 MiB.
    std::array<uint64_t, kUseCount> budget_bytes{};
    bool fault_in = true;  // false only in tests: pages are allocated at their first access
    FaultInProgress on_faulted_in = nullptr;
    bool needs_hugetlb = false;  // fail if there are no hugetlb pages
    // Maps hugetlb pages, like mmap().
    void* (*map_hugetlb)(uint64_t bytes) = MapHugetlb;
    // Whether other processes can map the memory. If the kernel does not provide such memory, the
    // mapping is anonymous, and why_not_shared() returns the reason.
    bool is_shared = false;
  };
  enum class Pages : uint8_t { kHugetlb, kTransparent, kSmall };

  // Allocates all pages before it returns (FaultIn()), and logs the progress once a second. The
  // kernel may promise hugetlb pages but refuse them on access, for example because of a cgroup
  // limit. Then other pages are used, with a warning in the log. The same warning is logged if not
  // all pages are 2 MiB pages. Errors: ResourceExhausted if the kernel refuses the memory.
  static absl::StatusOr<std::unique_ptr<Arena>> Make(const Options& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  enum class Refusal : uint8_t {
    kNone,
    kOverBudget,  // the budget of the use is exhausted: free bytes of that use
    kNoRoom,      // no free range is long enough: free a contiguous range
  };
  // Returns an empty extent, and sets *refusal, if the bytes do not fit. REQUIRES: bytes > 0.
  Extent Allocate(uint64_t bytes, Use use, Refusal* refusal);

  // Changes the use of an extent, and keeps its bytes. Returns false, and changes nothing, if the
  // budget of `use` would be exceeded.
  bool ChangeUse(const Extent& extent, Use use);

  // Examines the next `ranges_max` ranges. Among these, finds the contiguous run of `bytes` that is
  // cheapest to free, and returns the owners of its extents. A free range costs nothing. An extent
  // costs `cost(owner)`; UINT64_MAX means not evictable. Returns an empty vector if there is no
  // such run. Adds the examined bytes to *bytes_passed. The next call continues after them. `cost`
  // runs under the arena's lock and must not call the arena.
  std::vector<void*> CheapestWindow(uint64_t bytes, size_t ranges_max,
                                    absl::FunctionRef<uint64_t(void*)> cost,
                                    uint64_t* bytes_passed);

  uint64_t capacity_bytes() const { return aligned_.size(); }
  uint64_t budget_bytes(Use use) const { return budget_bytes_[static_cast<size_t>(use)]; }
  uint64_t used_bytes(Use use) const;
  // All bytes that were ever allocated, and all that were ever freed, both rounded. Their
  // difference is in use.
  uint64_t allocated_bytes_total() const;
  uint64_t freed_bytes_total() const;
  Pages pages() const { return pages_; }
  std::span<std::byte> mapping() const { return aligned_; }
  // Returns a read-only descriptor of the memory, or -1 if the memory is not shared. The memory is
  // sealed: its size and its pages cannot change, and only mapping() can write to it.
  int shared_fd() const { return shared_fd_.get(); }
  // Returns why the memory is not shared although Options::is_shared was set.
  const std::string& why_not_shared() const { return why_not_shared_; }
  // Returns the size of the largest extent that fits now, without regard to budgets.
  uint64_t largest_free_bytes() const;

 private:
  friend class Extent;
  Arena() = default;
  static void* MapHugetlb(uint64_t bytes);
  // On failure, these functions leave no mapping behind.
  absl::Status TakeHugetlb(uint64_t bytes, const Options& options);
  absl::Status TakeOrdinary(uint64_t bytes, const Options& options);
  // Makes the mapping from a memfd, with hugetlb pages or with other pages.
  absl::Status TakeShared(uint64_t bytes, bool is_hugetlb, const Options& options);
  absl::Status TakePages(const Options& options);
  void Unmap();
  void SetOwner(uint64_t offset, void* owner);
  void Free(uint64_t offset);
  void Shrink(uint64_t offset, uint64_t bytes);

  std::span<std::byte> mapping_;  // the whole mapping
  std::span<std::byte> aligned_;  // its used part
  std::array<uint64_t, kUseCount> budget_bytes_{};
  Pages pages_ = Pages::kSmall;
  Fd memfd_;      // valid during Make()
  Fd shared_fd_;  // the same memory, read-only
  std::string why_not_shared_;

  mutable Mutex mutex_;
  RangeMap ranges_ ABSL_GUARDED_BY(mutex_);
  std::array<uint64_t, kUseCount> used_bytes_ ABSL_GUARDED_BY(mutex_){};
  uint64_t allocated_bytes_total_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t freed_bytes_total_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
