// SPDX-License-Identifier: Apache-2.0
// Match, leases and waiting.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "service/index/block_index.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Before the lock: the kernel is asked.
proto::LeaseToken NewToken(const MatchQuery& query) {
  return query.wants_lease ? RandomBytes<16>() : proto::LeaseToken{};
}

}  // namespace

absl::StatusOr<MatchAnswer> BlockIndex::RunMatch(const MatchQuery& query,
                                                 const proto::LeaseToken& token) {
  CAIRN_CHECK(query.keys.size() <= limits::kKeysPerCallMax && !query.wanted.empty());
  if (query.wants_lease) {
    const MutexLock lock(mutex_);
    CAIRN_RETURN_IF_ERROR(leases_.CheckRoom(query.tenant, query.session_id, 0));
  }
  MatchScan scan(query);
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
              mutex_) { return scan.Look(table_, leases_.BytesFreeFor(query.tenant), visits); },
          [&] { scan.Reserve(); });
  if (query.wants_lease) {
    LeaseFound(scan, query.tenant);
  } else {
    scan.Plan(/*lease_bytes_free=*/0);
  }
  MatchAnswer answer = scan.Answer();
  absl::Status refusal;
  std::vector<Image*> leased;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Time now = clock_.Now();
    if (!CountLeased(query.tenant, [&] { return scan.ReleasePins(table_, visits); }) ||
        !scan.Touch(table_, now, visits)) {
      return false;
    }
    leased = scan.TakeLeased();
    if (query.wants_lease && scan.block_count() > 0) {
      refusal = leases_.CheckRoom(query.tenant, query.session_id, leased.size());
      if (refusal.ok()) {
        leases_.Take(token, query.tenant, query.session_id, std::move(leased), now);
        answer.lease = token;
        answer.lease_ms = limits::kLeaseMs;
      }
    }
    return true;
  });
  if (!refusal.ok()) {
    Leases::Dropped dropped;
    dropped.push_back({query.tenant, std::move(leased)});
    Unlease(dropped);
    return refusal;
  }
  return answer;
}

void BlockIndex::CheckLease(const MatchQuery& query, absl::StatusOr<MatchAnswer>& result) {
  if (!result.ok()) {
    return;
  }
  const auto asked = absl::MakeConstSpan(query.keys).first(BlocksAsked(query));
  asked_blocks_.Add(asked.size());
  asked_keys_.Add(query.space_id, asked, result->blocks.size());
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
  absl::StatusOr<MatchAnswer> result = RunMatch(query, NewToken(query));
  CheckLease(query, result);
  match_seconds_.Observe(MonotonicNow() - started);
  return result;
}

// --- Waiting -------------------------------------------------------------------------------------

absl::Status BlockIndex::FileIfMissing(std::unique_ptr<Waiter>& waiter) {
  const uint64_t session_id = waiter->query.session_id;
  absl::Status refusal;
  MissingScan scan(waiter->query);
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!scan.Look(table_, visits)) {
      return false;
    }
    if (!scan.missing().has_value() || waiter->deadline <= clock_.Now()) {
      return true;
    }
    if (!waiter->is_admitted) {
      refusal = waiters_.Admit(waiter->query);
      waiter->is_admitted = refusal.ok();
    }
    if (waiter->is_admitted) {
      const BlockName awaited = {waiter->query.space_id, waiter->query.keys[*scan.missing()]};
      waiters_.File(std::move(waiter), awaited);
    }
    return true;
  });
  // A session that ended while the waiter was not on file did not find it there.
  if (waiter == nullptr && is_session_open_ && !is_session_open_(session_id)) {
    EndSession(session_id);
  }
  return refusal;
}

void BlockIndex::MatchWhenReady(MatchQuery query, absl::Time deadline, MatchDone done) {
  auto waiter = std::make_unique<Waiter>(Waiter{std::move(query), deadline, std::move(done)});
  const absl::Status refusal = FileIfMissing(waiter);
  if (!refusal.ok()) {
    waiter->done(refusal);
  } else if (waiter != nullptr) {
    AnswerWaiter(std::move(waiter));
  } else if (wake_) {
    wake_();
  }
}

void BlockIndex::TryWaiter(std::unique_ptr<Waiter> waiter, bool is_last_try) {
  const uint64_t session_id = waiter->query.session_id;
  if (!is_last_try && (!is_session_open_ || is_session_open_(session_id))) {
    CAIRN_CHECK_OK(FileIfMissing(waiter));  // it is admitted
  }
  if (waiter != nullptr) {
    AnswerWaiter(std::move(waiter));
  }
}

void BlockIndex::AnswerWaiter(std::unique_ptr<Waiter> waiter) {
  absl::StatusOr<MatchAnswer> result = Match(waiter->query);
  if (waiter->is_admitted) {
    const MutexLock lock(mutex_);
    waiters_.Discharge(waiter->query);
  }
  waiter->done(std::move(result));
}

absl::Time BlockIndex::AnswerLateWaiters() {
  Waiters::Taken late;
  absl::Time next;
  const absl::Time now = clock_.Now();
  {
    const MutexLock lock(mutex_);
    next = waiters_.next_deadline();
  }
  if (next > now) {
    return next;
  }
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool is_over = waiters_.TakeLate(now, visits, &late);
    next = waiters_.next_deadline();
    return is_over;
  });
  for (std::unique_ptr<Waiter>& waiter : late) {
    TryWaiter(std::move(waiter), /*is_last_try=*/true);
  }
  return next;
}

// --- Leases --------------------------------------------------------------------------------------

bool BlockIndex::CountLeased(std::string_view tenant, absl::FunctionRef<bool()> change) {
  const uint64_t before = table_.leased_bytes();
  const bool result = change();
  leases_.CountBytes(tenant, before, table_.leased_bytes());
  return result;
}

void BlockIndex::LeaseFound(MatchScan& scan, std::string_view tenant) {
  uint64_t lease_bytes_free = 0;
  for (int plans = 0; plans < limits::kMatchPlansMax; ++plans) {
    {
      const MutexLock lock(mutex_);
      lease_bytes_free = leases_.BytesFreeFor(tenant) + scan.leased_bytes();
    }
    scan.Plan(lease_bytes_free);
    InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const uint64_t leased_max = table_.leased_bytes() + leases_.BytesFreeFor(tenant);
      return CountLeased(tenant, [&] { return scan.Lease(table_, leased_max, visits); });
    });
    if (scan.is_leased()) {
      return;
    }
  }
  scan.Abandon();
}

void BlockIndex::Unlease(const Leases::Dropped& dropped) {
  if (dropped.empty()) {
    return;
  }
  size_t lease = 0, image = 0;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (; lease < dropped.size(); ++lease, image = 0) {
      const std::vector<Image*>& images = dropped[lease].images;
      const bool is_over = CountLeased(dropped[lease].tenant, [&] {
        for (; image < images.size() && visits.Take(); ++image) {
          table_.LeaseUnpin(images[image]);
        }
        return image == images.size();
      });
      if (!is_over) {
        return false;
      }
    }
    return true;
  });
}

void BlockIndex::Release(std::string_view tenant, absl::Span<const proto::LeaseToken> leases) {
  Leases::Dropped dropped;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return leases_.Release(tenant, &leases, visits, &dropped);
  });
  Unlease(dropped);
}

void BlockIndex::RenewLeases(uint64_t session_id) {
  const MutexLock lock(mutex_);
  leases_.Renew(session_id, clock_.Now());
}

void BlockIndex::EndSession(uint64_t session_id) {
  Leases::Dropped dropped;
  Waiters::Taken orphaned;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return leases_.EndSession(session_id, visits, &dropped) &&
           waiters_.TakeOf(session_id, visits, &orphaned);
  });
  Unlease(dropped);
  for (std::unique_ptr<Waiter>& waiter : orphaned) {
    waiter->query.wants_lease = false;
    TryWaiter(std::move(waiter), /*is_last_try=*/true);
  }
}

absl::Time BlockIndex::ExpireLeases() {
  Leases::Dropped dropped;
  absl::Time next;
  const absl::Time now = clock_.Now();
  {
    const MutexLock lock(mutex_);
    next = leases_.next_expiry();
  }
  if (next > now) {
    return next;
  }
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool is_over = leases_.Expire(now, visits, &dropped);
    next = leases_.next_expiry();
    return is_over;
  });
  Unlease(dropped);
  return next;
}

}  // namespace cairn
