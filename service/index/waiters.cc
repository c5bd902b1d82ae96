// SPDX-License-Identifier: Apache-2.0
#include "service/index/waiters.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "service/limits.h"

namespace cairn {

absl::Status Waiters::Admit(const MatchQuery& query) {
  const auto of_session = count_by_session_.find(query.session_id);
  if (of_session != count_by_session_.end() &&
      of_session->second >= limits::kWaitersPerSessionMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("waiting calls of the session: at most ", limits::kWaitersPerSessionMax));
  }
  CAIRN_RETURN_IF_ERROR(shares_.CheckRoom(query.tenant, 1));
  CAIRN_RETURN_IF_ERROR(key_shares_.CheckRoom(query.tenant, query.keys.size()));
  ++count_by_session_[query.session_id];
  shares_.Add(query.tenant, 1);
  key_shares_.Add(query.tenant, query.keys.size());
  ++waited_total_;
  return absl::OkStatus();
}

void Waiters::Discharge(const MatchQuery& query) {
  const auto of_session = count_by_session_.find(query.session_id);
  CAIRN_CHECK(of_session != count_by_session_.end());
  if (--of_session->second == 0) {
    count_by_session_.erase(of_session);
  }
  shares_.Remove(query.tenant, 1);
  key_shares_.Remove(query.tenant, query.keys.size());
}

void Waiters::File(std::unique_ptr<Waiter> waiter, const BlockName& awaited) {
  const uint64_t id = ++last_id_;
  by_name_[awaited].push_back(id);
  filed_.emplace(id, Filed{std::move(waiter), awaited});
}

std::unique_ptr<Waiter> Waiters::Take(uint64_t id) {
  const auto found = filed_.find(id);
  CAIRN_CHECK(found != filed_.end());
  const auto name = by_name_.find(found->second.awaited);
  auto& ids = name->second;
  ids.erase(std::find(ids.begin(), ids.end(), id));
  if (ids.empty()) {
    by_name_.erase(name);
  }
  std::unique_ptr<Waiter> waiter = std::move(found->second.waiter);
  filed_.erase(found);
  return waiter;
}

template <typename Predicate>
Waiters::Taken Waiters::TakeIf(Predicate predicate) {
  std::vector<uint64_t> ids;
  for (const auto& [id, filed] : filed_) {
    if (predicate(*filed.waiter)) {
      ids.push_back(id);
    }
  }
  Taken taken;
  for (const uint64_t id : ids) {
    taken.push_back(Take(id));
  }
  return taken;
}

Waiters::Taken Waiters::TakeFor(const BlockName& name) {
  Taken taken;
  if (const auto found = by_name_.find(name); found != by_name_.end()) {
    const auto ids = found->second;
    for (const uint64_t id : ids) {
      taken.push_back(Take(id));
    }
  }
  return taken;
}

Waiters::Taken Waiters::TakeLate(absl::Time now) {
  return TakeIf([now](const Waiter& waiter) { return waiter.deadline <= now; });
}

Waiters::Taken Waiters::TakeOf(uint64_t session_id) {
  return TakeIf(
      [session_id](const Waiter& waiter) { return waiter.query.session_id == session_id; });
}

absl::Time Waiters::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, filed] : filed_) {
    next = std::min(next, filed.waiter->deadline);
  }
  return next;
}

void Waiters::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_waiters", "Match calls that wait for blocks.", {},
                static_cast<double>(count()));
  sink.AddCounter("cairn_waits_total", "Match calls that had to wait.", {}, waited_total_);
  shares_.Report(sink);
  key_shares_.Report(sink);
}

}  // namespace cairn
