// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory that a client shares with the daemon: a memfd sealed against shrinking and growing,
// its mapping, and an allocator for it.
//
// The daemon can write into the memory until it has closed the connection. When a connection
// breaks, Detach() therefore takes the ranges of running calls out of the daemon's reach before
// these calls complete.
//
// Thread-safety: Thread-safe.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/mutex.h"
#include "transport/transport.h"

namespace cairn::transport {

class ClientRegion {
 public:
  // Allocates the region. `bytes` is rounded up to whole pages; all of them are allocated now and
  // charged to this process, because the daemon refuses a region with holes. Errors:
  // ResourceExhausted if the system has no memory or descriptors left; InvalidArgument for 0 bytes.
  static absl::StatusOr<std::shared_ptr<ClientRegion>> Make(uint64_t bytes);
  ~ClientRegion();
  ClientRegion(const ClientRegion&) = delete;

  int memfd() const { return memfd_.get(); }
  uint64_t bytes() const { return bytes_; }
  std::byte* At(uint64_t place) const { return base_ + place; }
  // Returns the offset of `span` in the region, or nullopt unless the region contains all of it.
  std::optional<uint64_t> PlaceOf(std::span<const std::byte> span) const;

  // Allocates whole pages, first fit. Errors: ResourceExhausted if no gap is large enough.
  absl::StatusOr<uint64_t> Allocate(uint64_t bytes);
  // REQUIRES: `place` came from Allocate() with these bytes.
  void Free(uint64_t place, uint64_t bytes);

  // Replaces the pages of [place, place + bytes) by private copies at the same address, so that
  // later writes of the daemon do not show here. The range must not be given to the daemon again.
  void Detach(uint64_t place, uint64_t bytes);

 private:
  ClientRegion(Fd memfd, std::byte* base, uint64_t bytes);

  const Fd memfd_;
  std::byte* const base_;
  const uint64_t bytes_;
  Mutex mutex_;
  std::map<uint64_t, uint64_t> gaps_ ABSL_GUARDED_BY(mutex_);  // place -> bytes, never adjacent
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

}  // namespace cairn::transport
