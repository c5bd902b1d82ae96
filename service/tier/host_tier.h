// SPDX-License-Identifier: Apache-2.0
#pragma once
// The DRAM tier: images in one arena, and staging memory in the same arena. Placed images
// (capacity_bytes) and staging (staging_bytes) have separate budgets.
//
// The tier evicts by itself: PlaceStaged() and Allocate() make room, oldest leaf first. If the free
// bytes are not contiguous, they evict the images in a cheap contiguous window. Staging is not
// evicted: only its owners free it. A lane that needs contiguous staging searches once for a
// window, in a bounded number of ranges. If it finds none, it is refused. The next search continues
// where this one ended.
//
// Thread-safety: Thread-safe.
// Locks:         no lock is held while it calls the evictor, which may take the index's lock.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metric.h"
#include "service/memory/arena.h"
#include "service/tier/tier.h"

namespace cairn {

class HostTier final : public CopyTier {
 public:
  struct Options {
    uint64_t capacity_bytes = 0;
    uint64_t staging_bytes = 0;
    bool fault_in = true;
    FaultInProgress on_faulted_in = nullptr;
    bool needs_hugetlb = false;
    bool is_shared = false;  // as in Arena::Options
  };

  // Errors: those of Arena::Make().
  static absl::StatusOr<std::unique_ptr<HostTier>> Make(const Options& options);

  const TierTraits& traits() const override;
  void SetEvictor(Evictor* evictor) override { evictor_ = evictor; }
  using CopyTier::Reserve;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) override;
  // Copies in memory. Complete when the call returns.
  TransferId Read(const TierRead& read, TierDone done) override;
  TransferId Write(const TierWrite& write, TierDone done) override;
  void Cancel(TransferId) override {}

  // Allocates room for an image. `newcomer` is its block, for the Evictor, or null. Errors:
  // ResourceExhausted if the image is larger than the tier, or if nothing can be evicted. Copies
  // that are pinned or being written, and those before the newcomer in its chain, cannot be
  // evicted.
  absl::StatusOr<Extent> Allocate(uint64_t bytes, const BlockName* newcomer = nullptr);
  // Allocates room for a payload or an answer. Errors: ResourceExhausted if the staging budget is
  // used up.
  absl::StatusOr<Extent> AllocateStaging(uint64_t bytes, const BlockName* newcomer = nullptr);
  // Turns staging into a placed image, without copying. Errors: ResourceExhausted as for
  // Allocate(); then `staged` is unchanged.
  absl::Status PlaceStaged(Extent& staged, const BlockName* newcomer = nullptr);

  // Upkeep calls it. When the tier is above the high watermark, each call evicts one block and
  // returns true, until the low watermark is reached.
  bool EvictToWatermark();

  Arena& arena() { return *arena_; }
  const Arena& arena() const { return *arena_; }
  uint64_t capacity_bytes() const override { return arena_->budget_bytes(Use::kPlaced); }
  uint64_t used_bytes() const override { return arena_->used_bytes(Use::kPlaced); }
  // How often Allocate() and PlaceStaged() failed because everything was pinned or in use.
  uint64_t refusals() const { return refused_[static_cast<size_t>(Use::kPlaced)].Value(); }
  uint64_t staging_capacity_bytes() const { return arena_->budget_bytes(Use::kStaging); }
  uint64_t staging_bytes() const { return arena_->used_bytes(Use::kStaging); }

  void Report(MetricSink& sink) const override;

 private:
  HostTier() = default;
  // Does nothing: the tier's places are extents, which free themselves.
  void Free(uint64_t offset, uint64_t rounded_bytes) override;
  // Calls `attempt`, which returns its refusal. Evicts and calls it again, until it succeeds or
  // nothing more can be evicted.
  absl::Status MakeRoom(uint64_t bytes, const BlockName* newcomer,
                        absl::FunctionRef<Arena::Refusal()> attempt);
  // Searches each range of the arena at most once.
  bool EvictWindow(uint64_t bytes, const BlockName* newcomer);

  std::unique_ptr<Arena> arena_;
  Evictor* evictor_ = nullptr;
  std::atomic<bool> is_evicting_to_low_{false};  // relaxed, because only upkeep uses it
  std::array<Counter, kUseCount> refused_;
};

}  // namespace cairn
