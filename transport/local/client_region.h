// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client's own memory that it shares with the daemon: a memfd sealed against shrinking and
// growing, its mapping, and who has which part of it.
//
// The daemon can write into it until it has closed the connection. So when a connection breaks,
// Detach() takes the parts that calls were using out of the daemon's reach before the calls are
// over.
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
  // `bytes` is rounded up to whole pages, all of which are allocated now and charged to this
  // process: the daemon takes no region with a hole. ResourceExhausted when the system has no
  // memory or descriptors for it; InvalidArgument for 0 bytes.
  static absl::StatusOr<std::shared_ptr<ClientRegion>> Make(uint64_t bytes);
  ~ClientRegion();
  ClientRegion(const ClientRegion&) = delete;

  int memfd() const { return memfd_.get(); }
  uint64_t bytes() const { return bytes_; }
  std::byte* At(uint64_t place) const { return base_ + place; }
  // The place of `span`, if all of it lies within.
  std::optional<uint64_t> PlaceOf(std::span<const std::byte> span) const;

  // Whole pages; first fit. ResourceExhausted when no gap is large enough.
  absl::StatusOr<uint64_t> Allocate(uint64_t bytes);
  // REQUIRES: `place` came from Allocate() with these bytes.
  void Free(uint64_t place, uint64_t bytes);

  // Replaces the pages under [place, place + bytes) by private copies at the same address: what the
  // daemon writes there later is not seen here. The part must not be given to the daemon again.
  void Detach(uint64_t place, uint64_t bytes);

 private:
  ClientRegion(Fd memfd, std::byte* base, uint64_t bytes);

  const Fd memfd_;
  std::byte* const base_;
  const uint64_t bytes_;
  Mutex mutex_;
  std::map<uint64_t, uint64_t> gaps_ ABSL_GUARDED_BY(mutex_);  // place -> bytes, never adjacent
};

// A part of a region. Keeps the mapping alive.
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
