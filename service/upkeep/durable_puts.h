// SPDX-License-Identifier: Apache-2.0
#pragma once
// Puts that wait until they are durable. A waiting put is a record, not a thread. First it waits
// until the persistent tier has its images and the blocks before them in the chain. Then it waits
// for a Sync() of the tier, which many puts share. Puts wait for blocks by name: write-back reports
// each block that it has written.
//
// The blocks before a put must be durable, because a block is not found without them. If one of
// them is missing, it may be arriving on another connection. The put then waits for it until its
// deadline.
//
// Thread-safety: Thread-safe, except Stop(), which one thread calls. Locks: no lock is held while
// it calls the index, the tier or a completion.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/in_flight.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/frame.h"
#include "service/index/block_index.h"
#include "service/tier/block_name.h"
#include "service/tier/tier.h"

namespace cairn {

class DurablePuts {
 public:
  using Done = absl::AnyInvocable<void(proto::Durability)>;

  // `tier` is the persistent tier, or null. `hurry` makes write-back try again at once.
  DurablePuts(BlockIndex& index, CopyTier* tier, const Clock& clock, std::function<void()> hurry);
  ~DurablePuts();  // REQUIRES: Stop() has returned, or no put ever waited

  // Writes the images of the slice, and the blocks before them, before other images. Runs `done`
  // exactly once, without locks held, possibly before AwaitDurable() returns. `done` runs when all
  // of them are durable, when it is known that they will not become durable, or shortly before the
  // deadline, so that the answer is in time. Call it without locks held.
  void AwaitDurable(const BlockName& block, const WantedGroup& wanted, absl::Time deadline,
                    Done done);

  // Must be called when write-back has written an image of the block, or has failed to write it.
  void Tried(const BlockName& block, const absl::Status& status);
  // Must be called when the tier had no room for an image. If `status` is Unavailable, the tier
  // accepts no images.
  void Refused(const absl::Status& status);
  // Answers puts whose deadline is near. Returns the next deadline, or InfiniteFuture.
  absl::Time AnswerLate(absl::Time now);
  // Answers all waiting puts, and answers later puts at once. Returns when the tier no longer uses
  // this object. Idempotent.
  void Stop();

  size_t count() const;
  void Report(MetricSink& sink) const;

 private:
  using Id = uint64_t;
  struct Images {  // of one slice
    BlockName block;
    WantedGroup wanted;
  };
  struct Waiter {
    Images images;
    absl::Time answer_at;
    Done done;
    std::optional<BlockName> waits_for;  // nullopt: the put is being tried, or waits for a sync
    bool is_syncing = false;
  };

  // Determines the next event that the put waits for.
  void Try(Id id);
  // Makes the put wait for `block`. Returns false if the put was answered, or if `block` was
  // reported after the put was last tried.
  bool WaitsAnew(Id id, const BlockName& block);
  bool BeginSync(Id id);
  // Ends the sync: the put must be tried again.
  void EndSync(Id id);
  // `lost` is the tier's count of lost copies, which was read before all images were found in the
  // tier.
  void Synced(Id id, const absl::Status& status, uint64_t lost);
  void Answer(Id id, proto::Durability durability);
  void StopWaiting(Id id, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  BlockIndex& index_;
  CopyTier* const tier_;
  const Clock& clock_;
  const std::function<void()> hurry_;

  mutable Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_no_room_ ABSL_GUARDED_BY(mutex_) = false;  // reset when an image is written
  Id last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Id, Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<BlockName, absl::flat_hash_set<Id>> by_block_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<absl::Time, Id>> deadlines_ ABSL_GUARDED_BY(mutex_);
  std::array<Counter, proto::kDurabilityCount> ended_as_;
  InFlight syncs_;
};

}  // namespace cairn
