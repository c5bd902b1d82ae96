// SPDX-License-Identifier: Apache-2.0
#pragma once
// A room of the index: which prefix of a chain is there, the leases on it, and those who wait for
// it.
//
// Thread-safety: Thread-safe. BlockIndex implements it, and its lock is the only one.

#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "service/index/match.h"

namespace cairn {

class Prefixes {
 public:
  virtual ~Prefixes() = default;

  // The longest prefix of query.keys that is complete by each group's rule; blocks touched. No
  // block: token_count 0, no lease. What a lease is to hold is pinned when it is found, and what is
  // deleted before it is leased ends the prefix; without a lease each block was there when it was
  // looked at. Where a lease of all of it would pin more than lease_bytes_max, a shorter prefix,
  // flagged. ResourceExhausted: leases, of the session or in all.
  virtual absl::StatusOr<MatchAnswer> Match(const MatchQuery& query) = 0;
  using MatchDone = absl::AnyInvocable<void(absl::StatusOr<MatchAnswer>)>;
  // As Match(), but waits for all of the keys (cut to token_limit) to be there. `done` runs exactly
  // once: in this call if nothing is to be waited for, else from the thread whose publish completed
  // the set, or from upkeep at `deadline` or at the session's end, with what there is then.
  // ResourceExhausted through `done`: too many waiters.
  virtual void MatchWhenReady(MatchQuery query, absl::Time deadline, MatchDone done) = 0;
  // Answers waiters whose deadline has passed. Returns the next deadline, or InfiniteFuture.
  virtual absl::Time AnswerLateWaiters() = 0;
  // Gives a tenant's leases back; unknown ones, and other tenants', are ignored.
  virtual void Release(std::string_view tenant, absl::Span<const proto::LeaseToken> leases) = 0;
  // The owner's stream lives: its leases run kLeaseMs from now, kLeaseMsMax from their start at
  // most.
  virtual void RenewLeases(uint64_t session_id) = 0;
  // The session is over: its leases are released and its waiters answered.
  virtual void EndSession(uint64_t session_id) = 0;
  // Drops leases that have run out. Returns the next expiry, or InfiniteFuture.
  virtual absl::Time ExpireLeases() = 0;
};

}  // namespace cairn
