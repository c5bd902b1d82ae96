// SPDX-License-Identifier: Apache-2.0
#pragma once
// The DRAM tier: images in one arena, with staging beside them. Two budgets that never lend to each
// other: placed images (capacity_bytes) and staging (staging_bytes).
//
// Eviction lives below: Place() and Allocate() make room themselves, oldest leaf first; when the
// bytes are there but in pieces, a cheap contiguous window of unpinned images goes. Staging is
// freed by its owners only; a lane asks for it, so it looks for a window once, among a bounded
// number of ranges, and is refused then. The next one looks further on.
//
// Thread-safety: Thread-safe.
// Locks:         none held while the evictor is called; the evictor may take the index's.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metric.h"
#include "service/memory/arena.h"

namespace cairn {

enum class EvictionReason : uint8_t {
  kCapacity,   // a put needed the bytes
  kWindow,     // a put needed contiguous bytes
  kWatermark,  // upkeep, ahead of need
  kBlocks,     // the index holds its maximum of blocks
};
inline constexpr size_t kEvictionReasonCount = 4;
std::string_view Name(EvictionReason reason);

// Who knows which images may go. Implemented by BlockIndex.
class Evictor {
 public:
  virtual ~Evictor() = default;
  // Evicts the least recently used block without children, pins and leases. Returns the arena bytes
  // that it freed; 0 when there is none.
  virtual uint64_t EvictOldest(EvictionReason reason) = 0;
  // Looks at a bounded number of ranges of the arena and evicts the unpinned blocks that stand in
  // the cheapest run of `bytes` among them. False when there is none; *bytes_passed grows by what
  // was looked at, and the next call goes on there.
  virtual bool EvictWindow(uint64_t bytes, uint64_t* bytes_passed) = 0;
};

class HostTier {
 public:
  struct Options {
    uint64_t capacity_bytes = 0;
    uint64_t staging_bytes = 0;
    bool fault_in = true;
  };

  // Errors: as Arena::Make.
  static absl::StatusOr<std::unique_ptr<HostTier>> Make(const Options& options);

  // REQUIRES: once, before the first Allocate() or Place(); the evictor outlives their use.
  void SetEvictor(Evictor* evictor) { evictor_ = evictor; }

  // Room for an image. ResourceExhausted: what is left is pinned or in flight, or the image is
  // larger than the tier.
  absl::StatusOr<Extent> Allocate(uint64_t bytes);
  // Room for a payload or an answer. ResourceExhausted: the staging budget is in use.
  absl::StatusOr<Extent> AllocateStaging(uint64_t bytes);
  // Turns staging into a placed image, without a copy. ResourceExhausted as Allocate(); `staged` is
  // then untouched.
  absl::Status Place(Extent& staged);
  // Turns a placed extent into staging, where it stays until it is destroyed. False when the
  // staging budget is in use.
  bool Unplace(Extent& placed) { return arena_->ChangeUse(placed, Use::kStaging); }

  // Upkeep: above the high watermark, evicts one block and returns true until the low one is
  // reached.
  bool EvictToWatermark();

  Arena& arena() { return *arena_; }
  const Arena& arena() const { return *arena_; }
  uint64_t capacity_bytes() const { return arena_->budget_bytes(Use::kPlaced); }
  uint64_t used_bytes() const { return arena_->used_bytes(Use::kPlaced); }
  // How often Allocate() and Place() found that what is left is pinned or in flight.
  uint64_t refusals() const { return refused_[static_cast<size_t>(Use::kPlaced)].Value(); }
  uint64_t staging_capacity_bytes() const { return arena_->budget_bytes(Use::kStaging); }
  uint64_t staging_bytes() const { return arena_->used_bytes(Use::kStaging); }

  void Report(MetricSink& sink) const;

 private:
  HostTier() = default;
  // Tries `attempt` until it is not refused, evicting in between. `attempt` returns its refusal.
  absl::Status MakeRoom(uint64_t bytes, absl::FunctionRef<Arena::Refusal()> attempt);
  // Once around the arena at most.
  bool EvictWindow(uint64_t bytes);

  std::unique_ptr<Arena> arena_;
  Evictor* evictor_ = nullptr;
  std::atomic<bool> is_evicting_to_low_{false};  // relaxed: upkeep's own memory between calls
  std::array<Counter, kUseCount> refused_;
};

}  // namespace cairn
