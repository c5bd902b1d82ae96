// SPDX-License-Identifier: Apache-2.0
#pragma once
// The DRAM tier: images in one arena, and staging memory in the same arena. Placed images
// (capacity_bytes) and staging (staging_bytes) have separate budgets.
//
// The tier evicts by itself: PlaceStaged() and Allocate() make room, oldest leaf first. If the free
// bytes are not contiguous, they evict a cheap contiguous window of unpinned images. Only its
// owners free staging. A lane that asks for staging searches a bounded number of ranges for a
// window once and is then refused; the next search continues from there.
//
// Thread-safety: Thread-safe.
// Locks:         none is held while the evictor is called, which may take the index's.

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
    bool is_shared = false;  // as of Arena::Options
  };

  // Errors: those of Arena::Make().
  static absl::StatusOr<std::unique_ptr<HostTier>> Make(const Options& options);

  const TierTraits& traits() const override;
  void SetEvictor(Evictor* evictor) override { evictor_ = evictor; }
  using CopyTier::Reserve;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) override;
  // Copies in memory; complete when the call returns.
  TransferId Read(const TierRead& read, TierDone done) override;
  TransferId Write(const TierWrite& write, TierDone done) override;
  void Cancel(TransferId) override {}

  // Allocates room for an image. `newcomer`: its block, for the Evictor; null: no block. Errors:
  // ResourceExhausted if everything else is pinned, being written or an ancestor of the newcomer,
  // or if the image is larger than the tier.
  absl::StatusOr<Extent> Allocate(uint64_t bytes, const BlockName* newcomer = nullptr);
  // Allocates room for a payload or an answer. Errors: ResourceExhausted if the staging budget is
  // used up.
  absl::StatusOr<Extent> AllocateStaging(uint64_t bytes, const BlockName* newcomer = nullptr);
  // Turns staging into a placed image, without a copy. Errors: ResourceExhausted as for Allocate();
  // `staged` is then unchanged.
  absl::Status PlaceStaged(Extent& staged, const BlockName* newcomer = nullptr);

  // For upkeep: once above the high watermark, evicts one block per call and returns true until the
  // low watermark is reached.
  bool EvictToWatermark();

  Arena& arena() { return *arena_; }
  const Arena& arena() const { return *arena_; }
  uint64_t capacity_bytes() const override { return arena_->budget_bytes(Use::kPlaced); }
  uint64_t used_bytes() const override { return arena_->used_bytes(Use::kPlaced); }
  // How often Allocate() and PlaceStaged() found everything pinned or in use.
  uint64_t refusals() const { return refused_[static_cast<size_t>(Use::kPlaced)].Value(); }
  uint64_t staging_capacity_bytes() const { return arena_->budget_bytes(Use::kStaging); }
  uint64_t staging_bytes() const { return arena_->used_bytes(Use::kStaging); }

  void Report(MetricSink& sink) const override;

 private:
  HostTier() = default;
  // Does nothing: its places are extents, which free themselves.
  void Free(uint64_t offset, uint64_t rounded_bytes) override;
  // Repeats `attempt`, which returns its refusal, and evicts in between, until it succeeds or
  // nothing can be evicted.
  absl::Status MakeRoom(uint64_t bytes, const BlockName* newcomer,
                        absl::FunctionRef<Arena::Refusal()> attempt);
  // Searches at most once around the arena.
  bool EvictWindow(uint64_t bytes, const BlockName* newcomer);

  std::unique_ptr<Arena> arena_;
  Evictor* evictor_ = nullptr;
  std::atomic<bool> is_evicting_to_low_{false};  // relaxed: state of upkeep between calls
  std::array<Counter, kUseCount> refused_;
};

}  // namespace cairn
