// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory that holds blocks: one mapping, taken and faulted in at start, handed out in
// extents. Anonymous, or of a memfd that other processes may map to read. Sizes are rounded up to
// one of 16 steps per doubling, in units of 4 KiB, so that what one block leaves fits the next;
// free neighbours coalesce; a request takes the smallest free range of its class or a larger one.
// Nothing ever moves.
//
// Thread-safety: Thread-safe, Arena and distinct Extents.
// Ownership:     an Extent is the sole owner of its bytes. The Arena must outlive it
// (CAIRN_CHECKed). Cost:          O(log free ranges) a call; no system call after construction.
// Accounting:    exact: for every Use, used_bytes is the sum of rounded_bytes() of the extents
// alive.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/memory/fault_in.h"
#include "service/memory/range_map.h"

namespace cairn {

class Arena;

// Rounds up as the arena accounts: a multiple of 4 KiB with at most 5 significant bits.
uint64_t RoundedExtentBytes(uint64_t bytes);

// A slice of an arena, owned. Move-only; empty when default-made or moved from.
// Thread-safety: Thread-compatible.
class Extent {
 public:
  Extent() = default;
  Extent(Extent&& source) noexcept
      : arena_(std::exchange(source.arena_, nullptr)),
        offset_(source.offset_),
        bytes_(std::exchange(source.bytes_, 0)) {}
  Extent& operator=(Extent&& source) noexcept;
  ~Extent() { Reset(); }

  bool is_empty() const { return arena_ == nullptr; }
  std::span<std::byte> bytes() const;
  uint64_t size_bytes() const { return bytes_; }  // as asked for
  uint64_t rounded_bytes() const { return is_empty() ? 0 : RoundedExtentBytes(bytes_); }
  uint64_t offset() const { return offset_; }  // within the arena: the place, in logs

  // Marks it as evictable on behalf of `owner`, or not (nullptr, as it is at first).
  void SetOwner(void* owner);
  // Gives the tail back. REQUIRES: 0 < bytes <= size_bytes().
  void ShrinkTo(uint64_t bytes);
  // Gives the bytes back; empty afterwards.
  void Reset();

 private:
  friend class Arena;
  Extent(Arena* arena, uint64_t offset, uint64_t bytes)
      : arena_(arena), offset_(offset), bytes_(bytes) {}

  Arena* arena_ = nullptr;
  uint64_t offset_ = 0;
  uint64_t bytes_ = 0;
};

class Arena {
 public:
  struct Options {
    // Of each use. Their sum, rounded up to 2 MiB, is the size of the mapping.
    std::array<uint64_t, kUseCount> budget_bytes{};
    bool fault_in = true;  // false: pages are taken at first touch (tests)
    FaultInProgress on_faulted_in = nullptr;
    bool needs_hugetlb = false;  // fails where other pages would be taken
    // As mmap(): memory of hugetlb pages.
    void* (*map_hugetlb)(uint64_t bytes) = MapHugetlb;
    // Others shall be able to map it. Where the kernel does not give such memory, it is anonymous
    // and why_not_shared() says why.
    bool is_shared = false;
  };
  enum class Pages : uint8_t { kHugetlb, kTransparent, kSmall };

  // ResourceExhausted if the kernel refuses the memory. Faults every page in before it returns
  // (FaultIn()), with a log line a second. Hugetlb pages that were promised and are refused when
  // they are touched, as a cgroup does, are given up for others, with a warning; there is one too
  // when there are no 2 MiB pages at all, or not for all of it.
  static absl::StatusOr<std::unique_ptr<Arena>> Make(const Options& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  enum class Refusal : uint8_t {
    kNone,
    kOverBudget,  // of the use: freeing bytes of that use helps
    kNoRoom,      // no free range is long enough: freeing a window helps
  };
  // Empty extent with *refusal set when it does not fit. REQUIRES: bytes > 0.
  Extent Allocate(uint64_t bytes, Use use, Refusal* refusal);

  // Moves an extent to another use, bytes untouched. False, nothing changed, when over that budget.
  bool ChangeUse(const Extent& extent, Use use);

  // Looks at the next `ranges_max` ranges, and returns the owners that stand in the cheapest run of
  // `bytes` among them: free ranges cost nothing, an owner what `cost` says (UINT64_MAX: cannot
  // go). Empty when there is no such run; *bytes_passed grows by how far it got, and the next call
  // goes on there. `cost` runs under the arena's lock and must not call the arena.
  std::vector<void*> CheapestWindow(uint64_t bytes, size_t ranges_max,
                                    absl::FunctionRef<uint64_t(void*)> cost,
                                    uint64_t* bytes_passed);

  uint64_t capacity_bytes() const { return aligned_.size(); }
  uint64_t budget_bytes(Use use) const { return budget_bytes_[static_cast<size_t>(use)]; }
  uint64_t used_bytes(Use use) const;
  // Bytes ever handed out and ever taken back, rounded: their difference is what is used.
  uint64_t allocated_bytes_total() const;
  uint64_t freed_bytes_total() const;
  Pages pages() const { return pages_; }
  std::span<std::byte> mapping() const { return aligned_; }
  // A descriptor of that memory, open to read alone; -1 where it is not shared. The memory is
  // sealed: it keeps its size and its pages, and nobody can write to it but through mapping().
  int shared_fd() const { return shared_fd_.get(); }
  const std::string& why_not_shared() const { return why_not_shared_; }  // where it was asked for
  // Largest extent that would fit now, budgets aside.
  uint64_t largest_free_bytes() const;

 private:
  friend class Extent;
  Arena() = default;
  static void* MapHugetlb(uint64_t bytes);
  // Both leave nothing mapped where they fail.
  absl::Status TakeHugetlb(uint64_t bytes, const Options& options);
  absl::Status TakeOrdinary(uint64_t bytes, const Options& options);
  // Of a memfd, on hugetlb pages or on others.
  absl::Status TakeShared(uint64_t bytes, bool is_hugetlb, const Options& options);
  absl::Status Seal();
  absl::Status TakePages(const Options& options);
  void Unmap();
  void SetOwner(uint64_t offset, void* owner);
  void Free(uint64_t offset);
  void Shrink(uint64_t offset, uint64_t bytes);

  std::span<std::byte> mapping_;  // as mapped
  std::span<std::byte> aligned_;  // the part in use
  std::array<uint64_t, kUseCount> budget_bytes_{};
  Pages pages_ = Pages::kSmall;
  Fd memfd_;      // while it is taken
  Fd shared_fd_;  // of the same, to read
  std::string why_not_shared_;

  mutable Mutex mutex_;
  RangeMap ranges_ ABSL_GUARDED_BY(mutex_);
  std::array<uint64_t, kUseCount> used_bytes_ ABSL_GUARDED_BY(mutex_){};
  uint64_t allocated_bytes_total_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t freed_bytes_total_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
