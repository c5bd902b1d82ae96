// SPDX-License-Identifier: Apache-2.0
// Match, leases and waiting.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "service/index/block_index.h"
#include "service/index/cover.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Before the lock: the kernel is asked.
proto::LeaseToken NewToken(const MatchQuery& query) {
  return query.wants_lease ? RandomBytes<16>() : proto::LeaseToken{};
}

}  // namespace

absl::StatusOr<MatchAnswer> BlockIndex::MatchLocked(const MatchQuery& query,
                                                    const proto::LeaseToken& token) {
  CAIRN_CHECK(query.keys.size() <= limits::kKeysPerCallMax && !query.wanted.empty());
  const absl::Time now = clock_.Now();
  const uint64_t leased = table_.leased_bytes();
  const MatchPlan plan = PlanMatch(
      table_, query, options_.lease_bytes_max > leased ? options_.lease_bytes_max - leased : 0);
  const size_t count = plan.blocks.size();
  MatchAnswer result;
  result.token_count = uint64_t{count} * query.tokens_per_block;
  result.is_shortened_by_pins = plan.is_shortened_by_pins;
  result.blocks.resize(count);
  std::vector<Image*> needed;
  ImageList images;
  for (const WantedGroup& wanted : query.wanted) {
    for (size_t i = FirstNeeded(wanted, count); i < count; ++i) {
      CAIRN_CHECK(FindCover(*plan.blocks[i], wanted.group, wanted.slice, &images));
      for (Image* image : images) {
        result.blocks[i].image_bytes += image->facts.image_bytes;
        needed.push_back(image);
      }
    }
  }
  if (query.wants_lease && count > 0) {
    CAIRN_RETURN_IF_ERROR(leases_.CheckRoom(query.session_id, needed.size()));
    leases_.Take(token, query.tenant, query.session_id, std::move(needed), now);
    result.lease = token;
    result.lease_ms = limits::kLeaseMs;
  }
  // The end of the prefix first: where there are no parents to tell, it is to go before its
  // beginning.
  for (size_t i = count; i-- > 0;) {
    if (plan.blocks[i] != nullptr) {
      table_.Touch(plan.blocks[i], now);
    }
  }
  return result;
}

void BlockIndex::CheckLease(const MatchQuery& query, absl::StatusOr<MatchAnswer>& result) {
  if (!result.ok()) {
    return;
  }
  asked_blocks_.Add(BlocksAsked(query));
  matched_blocks_.Add(result->blocks.size());
  shortened_matches_.Add(result->is_shortened_by_pins ? 1 : 0);
  if (result->lease.has_value() && is_session_open_ && !is_session_open_(query.session_id)) {
    Release(query.tenant, {*result->lease});
    result->lease.reset();
    result->lease_ms = 0;
  }
}

absl::StatusOr<MatchAnswer> BlockIndex::Match(const MatchQuery& query) {
  const absl::Time started = MonotonicNow();
  const proto::LeaseToken token = NewToken(query);
  absl::StatusOr<MatchAnswer> result = absl::UnknownError("");
  {
    const MutexLock lock(mutex_);
    result = MatchLocked(query, token);
  }
  CheckLease(query, result);
  match_seconds_.Observe(MonotonicNow() - started);
  return result;
}

void BlockIndex::MatchWhenReady(MatchQuery query, absl::Time deadline, MatchDone done) {
  absl::Status refusal;
  bool is_waiting = false;
  {
    const MutexLock lock(mutex_);
    const std::optional<size_t> missing = LastMissing(table_, query);
    if (missing.has_value() && deadline > clock_.Now()) {
      refusal = waiters_.Admit(query);
      is_waiting = refusal.ok();
    }
    if (is_waiting) {
      const BlockName awaited = {query.space_id, query.keys[*missing]};
      waiters_.File(std::make_unique<Waiter>(Waiter{std::move(query), deadline, std::move(done)}),
                    awaited);
    }
  }
  if (is_waiting) {
    if (wake_) {
      wake_();
    }
    return;
  }
  done(refusal.ok() ? Match(query) : refusal);
}

void BlockIndex::TryWaiter(std::unique_ptr<Waiter> waiter, bool is_last_try) {
  const proto::LeaseToken token = NewToken(waiter->query);
  absl::StatusOr<MatchAnswer> result = absl::UnknownError("");
  {
    const MutexLock lock(mutex_);
    const std::optional<size_t> missing =
        is_last_try ? std::nullopt : LastMissing(table_, waiter->query);
    if (missing.has_value() && waiter->deadline > clock_.Now()) {
      const BlockName awaited = {waiter->query.space_id, waiter->query.keys[*missing]};
      waiters_.File(std::move(waiter), awaited);
      return;
    }
    result = MatchLocked(waiter->query, token);
    waiters_.Discharge(waiter->query);
  }
  CheckLease(waiter->query, result);
  waiter->done(std::move(result));
}

absl::Time BlockIndex::AnswerLateWaiters() {
  Waiters::Taken late;
  absl::Time next;
  {
    const MutexLock lock(mutex_);
    late = waiters_.TakeLate(clock_.Now());
    next = waiters_.NextDeadline();
  }
  for (std::unique_ptr<Waiter>& waiter : late) {
    TryWaiter(std::move(waiter), /*is_last_try=*/true);
  }
  return next;
}

void BlockIndex::Release(std::string_view tenant, absl::Span<const proto::LeaseToken> leases) {
  const MutexLock lock(mutex_);
  leases_.Release(tenant, leases);
}

void BlockIndex::RenewLeases(uint64_t session_id) {
  const MutexLock lock(mutex_);
  leases_.Renew(session_id, clock_.Now());
}

void BlockIndex::EndSession(uint64_t session_id) {
  Waiters::Taken orphaned;
  {
    const MutexLock lock(mutex_);
    leases_.EndSession(session_id);
    orphaned = waiters_.TakeOf(session_id);
  }
  for (std::unique_ptr<Waiter>& waiter : orphaned) {
    waiter->query.wants_lease = false;
    TryWaiter(std::move(waiter), /*is_last_try=*/true);
  }
}

absl::Time BlockIndex::ExpireLeases() {
  const MutexLock lock(mutex_);
  return leases_.Expire(clock_.Now());
}

}  // namespace cairn
