// SPDX-License-Identifier: Apache-2.0
#pragma once
// The index's interface for matching: stored prefixes of a chain, leases on them, and waiters for
// them.
//
// Thread-safety: Thread-safe. BlockIndex implements it with its lock.

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

  // Finds the longest prefix of query.keys that is complete by each group's rule, and touches its
  // blocks. No block: token_count 0, no lease. Images for a lease are pinned as they are found, and
  // a block that is deleted before it is leased ends the prefix; without a lease each block was
  // present when it was examined. If a lease of the whole prefix would pin more than
  // lease_bytes_max, returns a shorter prefix and flags it. Errors: ResourceExhausted (leases of
  // the session or in total).
  virtual absl::StatusOr<MatchAnswer> Match(const MatchQuery& query) = 0;
  using MatchDone = absl::AnyInvocable<void(absl::StatusOr<MatchAnswer>)>;
  // Like Match(), but waits until all keys (cut to token_limit) are present. `done` runs exactly
  // once: in this call if it need not wait, else on the thread whose publication completed the set,
  // or on upkeep's thread at `deadline` or at the session's end, with the prefix that exists then.
  // Errors, passed to `done`: ResourceExhausted (too many waiters).
  virtual void MatchWhenReady(MatchQuery query, absl::Time deadline, MatchDone done) = 0;
  // Answers waiters past their deadline. Returns the next deadline, or InfiniteFuture.
  virtual absl::Time AnswerLateWaiters() = 0;
  // Releases a tenant's leases; ignores unknown ones and those of other tenants.
  virtual void Release(std::string_view tenant, absl::Span<const proto::LeaseToken> leases) = 0;
  // Renews the leases of a live session: until kLeaseMs from now, at most kLeaseMsMax from their
  // start.
  virtual void RenewLeases(uint64_t session_id) = 0;
  // Releases the leases of a session that ended, and answers its waiters.
  virtual void EndSession(uint64_t session_id) = 0;
  // Drops expired leases. Returns the next expiry, or InfiniteFuture.
  virtual absl::Time ExpireLeases() = 0;
};

}  // namespace cairn
