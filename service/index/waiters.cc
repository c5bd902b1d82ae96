// SPDX-License-Identifier: Apache-2.0
#include "service/index/waiters.h"

#include <utility>

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
  by_name_[awaited].insert(id);
  by_session_[waiter->query.session_id].insert(id);
  by_deadline_.emplace(waiter->deadline, id);
  filed_.emplace(id, Filed{std::move(waiter), awaited});
}

std::unique_ptr<Waiter> Waiters::Take(uint64_t id) {
  const auto leave = [id](auto& map, const auto& key) {
    const auto found = map.find(key);
    found->second.erase(id);
    if (found->second.empty()) {
      map.erase(found);
    }
  };
  const auto found = filed_.find(id);
  CAIRN_CHECK(found != filed_.end());
  std::unique_ptr<Waiter> waiter = std::move(found->second.waiter);
  leave(by_name_, found->second.awaited);
  leave(by_session_, waiter->query.session_id);
  by_deadline_.erase({waiter->deadline, id});
  filed_.erase(found);
  return waiter;
}

template <typename Map, typename Key>
bool Waiters::TakeAll(const Map& map, const Key& key, Visits& visits, Taken* taken) {
  for (;;) {  // each iteration takes a waiter
    const auto found = map.find(key);
    if (found == map.end()) {
      return true;
    }
    if (!visits.Take()) {
      return false;
    }
    taken->push_back(Take(*found->second.begin()));
  }
}

bool Waiters::TakeFor(const BlockName& name, Visits& visits, Taken* taken) {
  return TakeAll(by_name_, name, visits, taken);
}

bool Waiters::TakeOf(uint64_t session_id, Visits& visits, Taken* taken) {
  return TakeAll(by_session_, session_id, visits, taken);
}

bool Waiters::TakeLate(absl::Time now, Visits& visits, Taken* taken) {
  while (next_deadline() <= now) {  // each iteration takes a waiter
    if (!visits.Take()) {
      return false;
    }
    taken->push_back(Take(by_deadline_.begin()->second));
  }
  return true;
}

void Waiters::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_waiters", "Match calls that wait for blocks.", {},
                static_cast<double>(count()));
  sink.AddCounter("cairn_waits_total", "Match calls that had to wait.", {}, waited_total_);
  shares_.Report(sink);
  key_shares_.Report(sink);
}

}  // namespace cairn
