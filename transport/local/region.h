// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client's memory as the daemon sees it: the mapped memfd that came with the client's Hello.
//
// The kernel's seals make it safe to touch: with F_SEAL_SHRINK and F_SEAL_GROW set nobody can cut
// the file under the mapping, so no access raises SIGBUS. Only memory of tmpfs is taken: a huge
// page that its owner punched out may have no replacement, and then an access would.
//
// The client pays for the memory: every page has to be there when the memfd comes, and Map() adds
// the seal F_SEAL_FUTURE_WRITE, after which nobody can punch one out. So no access here allocates
// a page. Mappings made before keep working; a memfd serves one connection.
//
// The client can read and write the bytes at any time: never parse them in place, never trust a
// checksum but that of a copy.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "base/file.h"

namespace cairn::transport {

// Bytes that may be mapped by all connections together. Thread-safety: Thread-safe. Must outlive
// every Region that draws on it.
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

// Thread-safety: Thread-compatible. Move-only; unmaps and gives its budget back when
// destroyed.
class Region {
 public:
  Region() = default;  // no memory at all
  // Maps `memfd` and seals it. The caller keeps the descriptor and may close it after the call.
  // InvalidArgument says which demand it does not meet; ResourceExhausted: the budget is used up,
  // or there is no address space. May block where another process writes to the memfd.
  static absl::StatusOr<Region> Map(const Fd& memfd, uint64_t bytes_max, RegionBudget& budget);
  // The whole of this process: places are addresses. For transport/memory.
  static Region WholeProcess();

  Region(Region&& source) noexcept { *this = std::move(source); }
  Region& operator=(Region&& source) noexcept;
  ~Region();

  uint64_t bytes() const { return bytes_; }
  // The memory at [place, place + bytes), or null unless all of it lies within. Place and bytes are
  // hostile. Zero bytes at a place within have an address that is not to be read.
  std::byte* At(uint64_t place, uint64_t bytes) const;

 private:
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  bool is_whole_process_ = false;
  RegionBudget* budget_ = nullptr;
};

}  // namespace cairn::transport
