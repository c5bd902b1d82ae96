// SPDX-License-Identifier: Apache-2.0
#pragma once
// Match calls that wait for blocks to come. Each is filed under one block it cannot do without; who
// publishes that block takes the waiter out, tries again, and files it under the next or answers
// it.
//
// Thread-safety: Thread-compatible (the index's lock). A waiter that was taken out belongs to who
// took it.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
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

  // Counts a new waiter. ResourceExhausted: waiters of the session or the tenant, or their keys.
  absl::Status Admit(const MatchQuery& query);
  // The waiter is answered, or about to be: no longer counted.
  void Discharge(const MatchQuery& query);

  // REQUIRES: admitted.
  void File(std::unique_ptr<Waiter> waiter, const BlockName& awaited);
  Taken TakeFor(const BlockName& name);
  Taken TakeLate(absl::Time now);
  Taken TakeOf(uint64_t session_id);
  absl::Time NextDeadline() const;

  // Filed ones and those being tried.
  size_t count() const { return shares_.total(); }
  void Report(MetricSink& sink) const;

 private:
  struct Filed {
    std::unique_ptr<Waiter> waiter;
    BlockName awaited;
  };
  std::unique_ptr<Waiter> Take(uint64_t id);
  template <typename Predicate>
  Taken TakeIf(Predicate predicate);

  uint64_t last_id_ = 0;
  absl::flat_hash_map<uint64_t, Filed> filed_;
  absl::flat_hash_map<BlockName, absl::InlinedVector<uint64_t, 2>> by_name_;
  absl::flat_hash_map<uint64_t, size_t> count_by_session_;
  TenantShares shares_{"waiters", limits::kWaitersMax};
  TenantShares key_shares_{"waited_keys", limits::kWaitedKeysMax};
  uint64_t waited_total_ = 0;
};

}  // namespace cairn
