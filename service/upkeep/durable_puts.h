// SPDX-License-Identifier: Apache-2.0
#pragma once
// Puts that wait until they are durable. Each is a record here, not a thread. It waits for the
// lasting tier to have its images, then for those of the blocks before it, then for a Sync() of the
// tier, which many share. Blocks are waited for by name: the way down says what it has written.
//
// Ancestors come first, since nobody finds a tail without its root. One that is not there may be on
// its way on another connection: it is waited for until the deadline.
//
// Thread-safety: Thread-safe, but for Stop(): one thread.
// Locks:         none held while the index, the tier or a completion is called.

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
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/durable_waits.h"
#include "service/index/copies.h"
#include "service/tier/tier.h"

namespace cairn {

class DurablePuts final : public DurableWaits {
 public:
  // `tier`: the lasting one; null: there is none. `hurry`: has the way down try at once.
  DurablePuts(Copies& copies, CopyTier* tier, const Clock& clock, std::function<void()> hurry);
  ~DurablePuts() override;  // REQUIRES: Stop() has returned, or nobody ever waited

  void AwaitDurable(const Images& images, absl::Time deadline, Done done) override;

  // The way down has written an image of the block, or could not.
  void Tried(const BlockName& block, const absl::Status& status);
  // The tier had no place for an image. Unavailable: it takes none.
  void Refused(const absl::Status& status);
  // Answers those whose deadline is near. Returns when the next is due, or InfiniteFuture.
  absl::Time AnswerLate(absl::Time now);
  // Answers all that wait, and all to come. Waits for the tier to let go. Idempotent.
  void Stop();

  size_t count() const;
  void Report(MetricSink& sink) const;

 private:
  using Id = uint64_t;
  struct Waiter {
    Images images;
    absl::Time answer_at;
    Done done;
    std::optional<BlockName> waits_for;  // empty: being tried, or synced
    bool is_syncing = false;
  };

  // Finds out what it waits for next.
  void Try(Id id);
  // False: it is answered already, or waits for that block since it was last tried.
  bool WaitsAnew(Id id, const BlockName& block);
  bool BeginSync(Id id);
  // It is to be tried again.
  void EndSync(Id id);
  // `lost`: copies of the tier, before it was seen that none is missing.
  void Synced(Id id, const absl::Status& status, uint64_t lost);
  void Answer(Id id, proto::Durability durability);
  void StopWaiting(Id id, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Copies& copies_;
  CopyTier* const tier_;
  const Clock& clock_;
  const std::function<void()> hurry_;

  mutable Mutex mutex_;
  CondVar ended_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_no_room_ ABSL_GUARDED_BY(mutex_) = false;  // since the last image was written
  size_t syncs_ ABSL_GUARDED_BY(mutex_) = 0;          // under way
  Id last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Id, Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<BlockName, absl::flat_hash_set<Id>> by_block_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<absl::Time, Id>> deadlines_ ABSL_GUARDED_BY(mutex_);
  std::array<Counter, proto::kDurabilityCount> ended_as_;
};

}  // namespace cairn
