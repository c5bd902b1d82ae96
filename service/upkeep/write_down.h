// SPDX-License-Identifier: Apache-2.0
#pragma once
// The way down: writes what the host tier holds into the lasting tier, ahead of need, so that
// eviction drops what is there as well, and the next process finds it.
//
// Images go in the order published, ancestors before descendants. A descendant is written while its
// ancestor still is. No thread waits for the device: bytes on their way are bounded, and a write
// that ends makes room for the next. What could not be written goes behind all others, and the tier
// rests for a while, longer each time in a row.
//
// What the write budget does not suffice for stays where it is: a block that was seen once is
// written when somebody asks for it or puts it again, and nothing is while the budget is spent.
//
// Where the space's policy names a recipe for the way down, the copy is in that: checked, and made
// of the image by an exact way. What has no such way is written as it is.
//
// Thread-safety: RunOnce() and Stop() are for one thread at a time, the rest is Thread-safe.
// Locks:         none held while a tier, the index or a space is called.

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
#include "base/metric.h"
#include "base/mutex.h"
#include "service/index/copies.h"
#include "service/memory/arena.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/durable_puts.h"
#include "service/upkeep/image_check.h"
#include "service/upkeep/recode.h"
#include "service/upkeep/write_budget.h"

namespace cairn {

struct WriteReport {
  uint64_t budget_bytes = 0;  // a day; 0: there is none
  double budget_left_bytes = 0;
  uint64_t withheld_count = 0;  // images that were seen once only, while it was short
  absl::Duration uptime;        // of what the devices count
};

class WriteDown {
 public:
  // `wake`: RunOnce() has something to do. Called on any thread, with no lock held.
  // `check` and `recoder` outlive it.
  // `budget_bytes`: that may be written a day; 0: any.
  WriteDown(Spaces& spaces, Copies& copies, Tiers& tiers, const Clock& clock, uint64_t budget_bytes,
            ImageCheck& check, const Recoder& recoder, std::function<void()> wake);
  ~WriteDown();  // REQUIRES: Stop() has returned, or nothing was written

  // Submits what there is room for. Returns when to call again if nothing wakes before.
  absl::Time RunOnce(absl::Time now);
  // No new writes; waits for those under way. Idempotent.
  void Stop();

  // Puts that wait for what is written.
  DurablePuts& durable_puts() { return durable_puts_; }

  // Images of the host tier that the lasting tier is to have and has not. 0: there is none.
  uint64_t left() const;
  WriteReport Describe() const;
  void Report(MetricSink& sink) const;

 private:
  // Where the blocks that follow go, while the write is under way.
  struct Way {
    std::shared_ptr<const ResidentPin> beside;  // null: `hash` chooses
    uint64_t hash = 0;
    uint32_t writes = 0;
  };
  struct Write {
    Uncopied image;
    SpaceRef space;
    std::shared_ptr<const SpaceEntry::Snapshot> snapshot;
    std::vector<NamedSideObject> side_objects;
    Way way;
    TierExtent place;
    Extent colder;  // what is written; empty: the bytes of the image
    CopyFacts copy;
    const SideObject* own = nullptr;  // what the copy is coded with

    std::span<const std::byte> bytes() const {
      return colder.is_empty() ? image.source.bytes() : std::as_bytes(colder.bytes());
    }
  };

  absl::Time BeginSome(absl::Time now);
  // False: there is no room now, or nothing to write.
  bool BeginOne(WriteBudget::State budget);
  // Counts in what reclaim has written, which wears the drives as well.
  void CountCarried(absl::Time now);
  // Fills in what is written. ResourceExhausted: there is no room for it now. DataLoss: the image
  // is damaged, and has been dropped.
  absl::Status MakeCopy(Write& write);
  absl::StatusOr<Extent> MakeColder(const Write& write, const codecs::Recipe& colder) const;
  std::shared_ptr<const SpaceEntry::Snapshot> SnapshotOf(const SpaceEntry& space);
  Way WayOf(Uncopied& image);
  void Submit(std::unique_ptr<Write> write);
  // The completion, on any thread.
  void Completed(std::unique_ptr<Write> write, const absl::Status& status);
  absl::Status Finish(Write& write);
  void Began(const Write& write);
  void Rest(const absl::Status& status);
  // Tries at once, though the tier rests.
  void Hurry();

  Spaces& spaces_;
  Copies& copies_;
  const Clock& clock_;
  ImageCheck& check_;
  const Recoder& recoder_;
  const std::function<void()> wake_;
  CopyTier* const tier_;  // null: there is no lasting one
  const uint64_t bytes_max_;
  const absl::Time began_;
  DurablePuts durable_puts_;
  // Of the thread that runs it.
  uint64_t carried_bytes_ = 0;
  absl::Time carried_at_ = absl::InfinitePast();
  // Of the space written last: its blocks come together.
  uint64_t snapshot_space_ = 0;
  std::shared_ptr<const SpaceEntry::Snapshot> snapshot_;

  mutable Mutex mutex_;
  CondVar ended_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;  // until Completed() is about to return
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<BlockName, Way> ways_ ABSL_GUARDED_BY(mutex_);
  absl::Time again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration rest_ ABSL_GUARDED_BY(mutex_);
  WriteBudget budget_ ABSL_GUARDED_BY(mutex_);
  Counter written_, written_bytes_, gone_, refused_, failed_, withheld_;
  Counter recoded_, recoded_bytes_, recode_failed_;
};

}  // namespace cairn
