// SPDX-License-Identifier: Apache-2.0
#pragma once
// The daemon's mapping of a client's memory: of the memfd that came with the client's hello.
//
// Kernel seals make accesses safe. With F_SEAL_SHRINK and F_SEAL_GROW, nobody can truncate the file
// while it is mapped, so no access raises SIGBUS. Only tmpfs memory is accepted, not hugetlbfs: if
// the owner punches out a huge page, the kernel may have no other, and an access raises SIGBUS.
//
// The kernel charges the memory to the client. Every page must be allocated when the memfd arrives.
// Map() then adds the seal F_SEAL_FUTURE_WRITE, after which nobody can punch a page out. So an
// access by the daemon never allocates a page. Mappings made before the seal keep working. Each
// connection needs its own memfd.
//
// The client can read and write the bytes at any time: never parse them in place, and trust a
// checksum only if it was computed over a copy.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "base/file.h"

namespace cairn::transport {

// A limit for the memory that all connections map together. Thread-safety: Thread-safe. It must
// outlive every Region that uses it.
class RegionBudget {
 public:
  explicit RegionBudget(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  [[nodiscard]] bool Take(uint64_t bytes);
  void GiveBack(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t used_bytes() const { return used_.load(std::memory_order_relaxed); }
  uint64_t bytes_max() const { return bytes_max_; }

 private:
  const uint64_t bytes_max_;
  std::atomic<uint64_t> used_{0};
};

// Thread-safety: Thread-compatible. Move-only; destroying it unmaps the memory and returns its
// share of the budget.
class Region {
 public:
  Region() = default;  // no memory
  // Maps `memfd` and seals it. The caller keeps the descriptor and may close it after the call. May
  // block while another process writes to the memfd. Errors: InvalidArgument (says which
  // requirement it fails), ResourceExhausted (the budget or the address space is used up).
  static absl::StatusOr<Region> Map(const Fd& memfd, uint64_t bytes_max, RegionBudget& budget);
  // The whole address space of this process, for transport/memory: places are addresses.
  static Region WholeProcess();

  Region(Region&& source) noexcept { *this = std::move(source); }
  Region& operator=(Region&& source) noexcept;
  ~Region();

  uint64_t bytes() const { return bytes_; }
  // Returns the memory at [place, place + bytes), or null unless the region contains all of it.
  // `place` and `bytes` are untrusted. For zero bytes at a valid place the address must not be
  // read.
  std::byte* At(uint64_t place, uint64_t bytes) const;

 private:
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  bool is_whole_process_ = false;
  RegionBudget* budget_ = nullptr;
};

}  // namespace cairn::transport
