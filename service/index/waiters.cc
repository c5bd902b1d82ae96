// SPDX-License-Identifier: Apache-2.0
#include "service/index/waiters.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "service/limits.h"

namespace cairn {

absl::Status Waiters::Admit(const MatchQuery& query) {
  size_t& of_session = count_by_session_[query.session_id];
  if (count_ >= limits::kWaitersMax || of_session >= limits::kWaitersPerSessionMax ||
      key_count_ + query.keys.size() > limits::kWaitedKeysMax) {
    ++refused_total_;
    if (of_session == 0) {
      count_by_session_.erase(query.session_id);
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("waiting calls: at most ", limits::kWaitersPerSessionMax, " a session, ",
                     limits::kWaitersMax, " in all, with ", limits::kWaitedKeysMax, " keys"));
  }
  ++of_session;
  ++count_;
  ++waited_total_;
  key_count_ += query.keys.size();
  return absl::OkStatus();
}

void Waiters::Discharge(const MatchQuery& query) {
  const auto of_session = count_by_session_.find(query.session_id);
  CAIRN_CHECK(of_session != count_by_session_.end() && count_ > 0);
  if (--of_session->second == 0) {
    count_by_session_.erase(of_session);
  }
  --count_;
  key_count_ -= query.keys.size();
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
                static_cast<double>(count_));
  sink.AddCounter("cairn_waits_total", "Match calls that had to wait.", {}, waited_total_);
  sink.AddCounter("cairn_waits_refused_total", "Match calls that could not wait: too many did.", {},
                  refused_total_);
}

}  // namespace cairn
