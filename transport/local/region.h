// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory that a client shares with the daemon: one class for the client's side, and one for the
// daemon's.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/mutex.h"
#include "transport/transport.h"

namespace cairn::transport {

// --- The client's side ---------------------------------------------------------------------------
// The memory that a client shares with the daemon: a memfd that is sealed against shrinking and
// growing, its mapping, and an allocator for it.
//
// The daemon can write to the memory until it has closed the connection. Therefore, when a
// connection breaks, Detach() makes the ranges of running calls unreachable for the daemon before
// these calls are over.
//
// Thread-safety: Thread-safe.
class ClientRegion {
 public:
  // Allocates the region. `bytes` is rounded up to whole pages. All pages are allocated now and
  // charged to this process, because the daemon refuses a region with holes. Errors:
  // ResourceExhausted (the system has no memory or descriptors left), InvalidArgument (0 bytes).
  static absl::StatusOr<std::shared_ptr<ClientRegion>> Make(uint64_t bytes);
  ~ClientRegion();
  ClientRegion(const ClientRegion&) = delete;

  int memfd() const { return memfd_.get(); }
  uint64_t bytes() const { return bytes_; }
  std::byte* At(uint64_t place) const { return base_ + place; }
  // Returns the offset of `span` in the region. Returns nullopt if not all of it is in the region.
  std::optional<uint64_t> PlaceOf(std::span<const std::byte> span) const;

  // Allocates whole pages, first fit. Errors: ResourceExhausted if no gap is large enough.
  absl::StatusOr<uint64_t> Allocate(uint64_t bytes);
  // REQUIRES: `place` came from Allocate() with these bytes.
  void Free(uint64_t place, uint64_t bytes);

  // Replaces the pages of [place, place + bytes) by private copies at the same address, so that
  // later writes of the daemon do not change them. The range must not be given to the daemon again.
  void Detach(uint64_t place, uint64_t bytes);

 private:
  ClientRegion(Fd memfd, std::byte* base, uint64_t bytes);

  const Fd memfd_;
  std::byte* const base_;
  const uint64_t bytes_;
  Mutex mutex_;
  std::map<uint64_t, uint64_t> gaps_ ABSL_GUARDED_BY(mutex_);  // place -> bytes; not adjacent
};

// A range of a region. Keeps the mapping alive.
// Thread-safety: Thread-compatible.
class RegionBuffer final : public Buffer {
 public:
  static absl::StatusOr<std::unique_ptr<RegionBuffer>> Make(std::shared_ptr<ClientRegion> region,
                                                            size_t bytes);
  ~RegionBuffer() override;
  std::span<std::byte> bytes() override { return {region_->At(place_), bytes_}; }
  uint64_t place() const { return place_; }

 private:
  RegionBuffer(std::shared_ptr<ClientRegion> region, uint64_t place, size_t bytes)
      : region_(std::move(region)), place_(place), bytes_(bytes) {}

  const std::shared_ptr<ClientRegion> region_;
  const uint64_t place_;
  const size_t bytes_;
};

// --- The daemon's side ---------------------------------------------------------------------------
// The daemon's mapping of a client's memory, which is the memfd that came with the client's hello.
//
// Kernel seals make accesses safe. With F_SEAL_SHRINK and F_SEAL_GROW nobody can truncate the file
// while it is mapped, so no access raises SIGBUS. Only tmpfs memory is accepted. With hugetlbfs,
// the owner could punch out a huge page; if the kernel then had no other page, an access would
// raise SIGBUS.
//
// The kernel charges the memory to the client. Every page must be allocated when the memfd arrives.
// Map() then adds the seal F_SEAL_FUTURE_WRITE, after which nobody can punch out a page. So an
// access by the daemon never allocates a page. Mappings that were made before the seal keep
// working. Each connection needs a memfd of its own.
//
// The client can read and write the bytes at any time. So never parse them in place, and trust a
// checksum only if it was computed over a copy.

// A limit for the memory that all connections together map. Thread-safety: Thread-safe. It must
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

// Thread-safety: Thread-compatible. Move-only. Destroying it unmaps the memory and returns its
// bytes to the budget.
class Region {
 public:
  Region() = default;  // no memory
  // Maps `memfd` and seals it. The caller still owns the descriptor, and may close it after the
  // call. May block while another process writes to the memfd. Errors: InvalidArgument (says which
  // requirement is not met), ResourceExhausted (the budget or the address space is used up).
  static absl::StatusOr<Region> Map(const Fd& memfd, uint64_t bytes_max, RegionBudget& budget);
  // Returns the whole address space of this process, for transport/memory: places are addresses.
  static Region WholeProcess();

  Region(Region&& source) noexcept { *this = std::move(source); }
  Region& operator=(Region&& source) noexcept;
  ~Region();

  uint64_t bytes() const { return bytes_; }
  // Returns the memory at [place, place + bytes), or null if not all of it is in the region.
  // `place` and `bytes` are untrusted. For zero bytes at a valid place, the result is not null but
  // must not be read.
  std::byte* At(uint64_t place, uint64_t bytes) const;

 private:
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  bool is_whole_process_ = false;
  RegionBudget* budget_ = nullptr;
};

}  // namespace cairn::transport
