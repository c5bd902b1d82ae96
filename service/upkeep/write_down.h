// SPDX-License-Identifier: Apache-2.0
#pragma once
// Write-back: writes images of the host tier to the persistent tier in advance. So the host tier
// can evict its copies of these images, and the next process finds the images.
//
// Images are written in the order of publication, except that a block is written before the blocks
// that follow it. These writes may overlap. No thread waits for the device: the bytes in transit
// are limited, and a completed write makes room for the next. An image whose write failed moves to
// the end of the queue. Then write-back pauses, for longer with each further failure.
//
// While the write budget is low, a block is written only if it was requested, or put a second time.
// Once the budget is used up, nothing is written.
//
// If the space's policy has a cold recipe, and there is an exact conversion to it, the image is
// verified and recoded to that recipe. Otherwise it is written unchanged.
//
// Thread-safety: only one thread at a time may call RunOnce() and Stop(). The rest is Thread-safe.
// Locks: no lock is held while it calls a tier, the index or a space.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/in_flight.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/index/block_index.h"
#include "service/memory/arena.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/durable_puts.h"
#include "service/upkeep/image_check.h"
#include "service/upkeep/recode.h"
#include "service/upkeep/write_budget.h"

namespace cairn {

struct WriteReport {
  uint64_t budget_bytes = 0;  // per day; 0: no budget
  double budget_left_bytes = 0;
  // The number of images whose write was postponed because the budget was low.
  uint64_t withheld_count = 0;
  absl::Duration uptime;  // how long the devices have counted their writes
};

class WriteDown {
 public:
  // `wake` is called when RunOnce() has work: on any thread, without locks held. `check` and
  // `recoder` must outlive it. `budget_bytes` is the limit per day; 0: none.
  WriteDown(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
            uint64_t budget_bytes, ImageCheck& check, const Recoder& recoder,
            std::function<void()> wake);
  // REQUIRES at destruction: Stop() has returned, or nothing was written.
  ~WriteDown() = default;

  // Submits as many writes as there is room for. Returns when to call it again, unless `wake` is
  // called before.
  absl::Time RunOnce(absl::Time now);
  // Begins no new writes, and waits for running ones. Idempotent.
  void Stop();

  // The puts that wait to be durable.
  DurablePuts& durable_puts() { return durable_puts_; }

  // The number of images that the persistent tier should have but lacks. 0 without such a tier.
  uint64_t left() const;
  WriteReport Describe() const;
  void Report(MetricSink& sink) const;

 private:
  // Where to write the blocks that follow a block, while that block itself is being written.
  struct PlacementHint {
    std::shared_ptr<const CopyPin> parent_copy;  // null: `hash` chooses the place
    uint64_t hash = 0;
    uint32_t writes = 0;
  };
  struct Write {
    WriteBackCandidate image;
    SpaceRef space;
    std::shared_ptr<const SpaceEntry::Snapshot> snapshot;
    std::vector<NamedSideObject> side_objects;
    PlacementHint hint;
    TierExtent place;
    Extent colder;  // the recoded bytes to write; empty: the image's own bytes are written
    CopyFacts copy;
    const SideObject* own = nullptr;  // the side object of the copy

    std::span<const std::byte> bytes() const {
      return colder.is_empty() ? image.source.bytes() : std::as_bytes(colder.bytes());
    }
  };

  absl::Time BeginSome(absl::Time now);
  // Begins one write. Returns false if there is no room now, or nothing to write.
  bool BeginOne(WriteBudget::State budget);
  // Subtracts from the budget the bytes that reclaim has written, because they also wear the
  // drives.
  void CountCarried(absl::Time now);
  // Makes the bytes to write. Errors: ResourceExhausted (there is no room for them now), DataLoss
  // (the image is damaged, and was dropped).
  absl::Status MakeCopy(Write& write);
  absl::StatusOr<Extent> MakeColder(const Write& write, const codecs::Recipe& colder) const;
  std::shared_ptr<const SpaceEntry::Snapshot> SnapshotOf(const SpaceEntry& space);
  PlacementHint HintOf(WriteBackCandidate& image);
  void Submit(std::unique_ptr<Write> write);
  // The completion. Runs on any thread.
  void Completed(std::unique_ptr<Write> write, const absl::Status& status);
  absl::Status Finish(Write& write);
  void Began(const Write& write);
  void Rest(const absl::Status& status);
  // Ends the pause and tries at once.
  void Hurry();

  Spaces& spaces_;
  BlockIndex& index_;
  const Clock& clock_;
  ImageCheck& check_;
  const Recoder& recoder_;
  const std::function<void()> wake_;
  CopyTier* const tier_;  // null: no persistent tier
  const uint64_t bytes_max_;
  const absl::Time began_;
  DurablePuts durable_puts_;
  // Used by the thread that calls RunOnce().
  uint64_t carried_bytes_ = 0;
  absl::Time carried_at_ = absl::InfinitePast();
  // The space that was written last; consecutive blocks usually belong to one space.
  uint64_t snapshot_space_ = 0;
  std::shared_ptr<const SpaceEntry::Snapshot> snapshot_;

  mutable Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<BlockName, PlacementHint> hints_ ABSL_GUARDED_BY(mutex_);
  absl::Time again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration rest_ ABSL_GUARDED_BY(mutex_);
  WriteBudget budget_ ABSL_GUARDED_BY(mutex_);
  Counter written_, written_bytes_, gone_, refused_, failed_, withheld_;
  Counter recoded_, recoded_bytes_, recode_failed_;
  InFlight in_flight_;  // writes
};

}  // namespace cairn
