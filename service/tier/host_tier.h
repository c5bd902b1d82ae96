// SPDX-License-Identifier: Apache-2.0
#pragma once
// The DRAM tier: images in one arena, with staging beside them. Two budgets that never lend to each
// other: placed images (capacity_bytes) and staging (staging_bytes).
//
// Eviction lives below: PlaceStaged() and Allocate() make room themselves, oldest leaf first; when
// the bytes are there but in pieces, a cheap contiguous window of unpinned images goes. Staging is
// freed by its owners only; a lane asks for it, so it looks for a window once, among a bounded
// number of ranges, and is refused then. The next one looks further on.
//
// Thread-safety: Thread-safe.
// Locks:         none held while the evictor is called; the evictor may take the index's.

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

  // Errors: as Arena::Make.
  static absl::StatusOr<std::unique_ptr<HostTier>> Make(const Options& options);

  const TierTraits& traits() const override;
  void SetEvictor(Evictor* evictor) override { evictor_ = evictor; }
  using CopyTier::Reserve;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) override;
  // A copy in memory, over when the call returns.
  TransferId Read(const TierRead& read, TierDone done) override;
  TransferId Write(const TierWrite& write, TierDone done) override;
  void Cancel(TransferId) override {}

  // Room for an image. `newcomer`: the block that it is of, as the Evictor is told; null: no block.
  // ResourceExhausted: what is left is pinned, in flight or before the newcomer, or the image is
  // larger than the tier.
  absl::StatusOr<Extent> Allocate(uint64_t bytes, const BlockName* newcomer = nullptr);
  // Room for a payload or an answer. ResourceExhausted: the staging budget is in use.
  absl::StatusOr<Extent> AllocateStaging(uint64_t bytes, const BlockName* newcomer = nullptr);
  // Turns staging into a placed image, without a copy. ResourceExhausted as Allocate(); `staged` is
  // then untouched.
  absl::Status PlaceStaged(Extent& staged, const BlockName* newcomer = nullptr);
  // Turns a placed extent into staging, where it stays until it is destroyed. False when the
  // staging budget is in use.
  bool Unplace(Extent& placed) { return arena_->ChangeUse(placed, Use::kStaging); }

  // Upkeep: above the high watermark, evicts one block and returns true until the low one is
  // reached.
  bool EvictToWatermark();

  Arena& arena() { return *arena_; }
  const Arena& arena() const { return *arena_; }
  uint64_t capacity_bytes() const override { return arena_->budget_bytes(Use::kPlaced); }
  uint64_t used_bytes() const override { return arena_->used_bytes(Use::kPlaced); }
  // How often Allocate() and PlaceStaged() found that what is left is pinned or in flight.
  uint64_t refusals() const { return refused_[static_cast<size_t>(Use::kPlaced)].Value(); }
  uint64_t staging_capacity_bytes() const { return arena_->budget_bytes(Use::kStaging); }
  uint64_t staging_bytes() const { return arena_->used_bytes(Use::kStaging); }

  void Report(MetricSink& sink) const override;

 private:
  HostTier() = default;
  // Its places are extents, which free themselves.
  void Free(uint64_t offset, uint64_t rounded_bytes) override;
  // Tries `attempt` until it is not refused, evicting in between. `attempt` returns its refusal.
  absl::Status MakeRoom(uint64_t bytes, const BlockName* newcomer,
                        absl::FunctionRef<Arena::Refusal()> attempt);
  // Once around the arena at most.
  bool EvictWindow(uint64_t bytes, const BlockName* newcomer);

  std::unique_ptr<Arena> arena_;
  Evictor* evictor_ = nullptr;
  std::atomic<bool> is_evicting_to_low_{false};  // relaxed: upkeep's own memory between calls
  std::array<Counter, kUseCount> refused_;
};

}  // namespace cairn
