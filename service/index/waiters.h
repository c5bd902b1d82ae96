// SPDX-License-Identifier: Apache-2.0
#pragma once
// Match calls that wait for blocks. Each waiter is stored under one missing block. The thread that
// publishes that block takes the waiter out and tries the match again. It then answers the waiter,
// or stores it under the next missing block. A function that may take out many waiters spends a
// visit for each waiter. If no visits are left, it returns false, and the caller calls it again in
// its next hold of the lock.
//
// Thread-safety: Thread-compatible (the index's lock). A waiter that was taken out belongs to the
//               thread that took it.

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "service/index/block.h"
#include "service/index/match.h"
#include "service/index/tenant_shares.h"
#include "service/limits.h"

namespace cairn {

struct Waiter {
  MatchQuery query;
  absl::Time deadline;
  absl::AnyInvocable<void(absl::StatusOr<MatchAnswer>)> done;
  bool is_admitted = false;
};

class Waiters {
 public:
  using Taken = std::vector<std::unique_ptr<Waiter>>;

  // Counts a new waiter. Errors: ResourceExhausted (the session or the tenant has too many waiters,
  // or their keys are too many).
  absl::Status Admit(const MatchQuery& query);
  // Stops counting a waiter that is answered, or about to be answered.
  void Discharge(const MatchQuery& query);

  // REQUIRES: the waiter is admitted.
  void File(std::unique_ptr<Waiter> waiter, const BlockName& awaited);
  bool TakeFor(const BlockName& name, Visits& visits, Taken* taken);
  bool TakeLate(absl::Time now, Visits& visits, Taken* taken);
  bool TakeOf(uint64_t session_id, Visits& visits, Taken* taken);
  // Returns InfiniteFuture if no waiter is stored.
  absl::Time next_deadline() const {
    return by_deadline_.empty() ? absl::InfiniteFuture() : by_deadline_.begin()->first;
  }

  // The number of waiters, including those that are being tried.
  size_t count() const { return shares_.total(); }
  void Report(MetricSink& sink) const;

 private:
  struct Filed {
    std::unique_ptr<Waiter> waiter;
    BlockName awaited;
  };
  std::unique_ptr<Waiter> Take(uint64_t id);
  // Takes out the waiters that `map` has for `key`, the oldest first.
  template <typename Map, typename Key>
  bool TakeAll(const Map& map, const Key& key, Visits& visits, Taken* taken);

  uint64_t last_id_ = 0;
  absl::flat_hash_map<uint64_t, Filed> filed_;
  // The ids of stored waiters. No set is empty.
  absl::flat_hash_map<BlockName, std::set<uint64_t>> by_name_;
  absl::flat_hash_map<uint64_t, std::set<uint64_t>> by_session_;
  std::set<std::pair<absl::Time, uint64_t>> by_deadline_;
  absl::flat_hash_map<uint64_t, size_t> count_by_session_;
  TenantShares shares_{"waiters", limits::kWaitersMax};
  TenantShares key_shares_{"waited_keys", limits::kWaitedKeysMax};
  uint64_t waited_total_ = 0;
};

}  // namespace cairn
