// SPDX-License-Identifier: Apache-2.0
#include "service/remote/late_deletes.h"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

size_t KeysOf(const LateDeletes::Deletion& deletion) {
  return std::max<size_t>(deletion.keys.size(), 1);
}

}  // namespace

void LateDeletes::MakeRoom(size_t keys) {
  while (keys_ + keys > kKeysMax) {
    keys_ -= KeysOf(waiting_.front());
    given_up_.Add(KeysOf(waiting_.front()));
    waiting_.pop_front();
  }
}

void LateDeletes::Add(Deletion deletion) {
  const size_t keys = KeysOf(deletion);
  if (keys > kKeysMax) return given_up_.Add(keys);
  const MutexLock lock(mutex_);
  MakeRoom(keys);
  keys_ += keys;
  waiting_.push_back(std::move(deletion));
}

std::optional<LateDeletes::Deletion> LateDeletes::Take(
    absl::Time now, absl::FunctionRef<bool(std::string_view member)> is_wanted) {
  const MutexLock lock(mutex_);
  std::erase_if(waiting_, [&](const Deletion& deletion) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (now - deletion.since < kKept) return false;
    keys_ -= KeysOf(deletion);
    given_up_.Add(KeysOf(deletion));
    return true;
  });
  const auto found = std::ranges::find_if(waiting_, [&](const Deletion& deletion) {
    return !busy_.contains(deletion.member) && is_wanted(deletion.member);
  });
  if (found == waiting_.end()) return std::nullopt;
  Deletion taken = std::move(*found);
  waiting_.erase(found);
  keys_ -= KeysOf(taken);
  busy_.insert(taken.member);
  return taken;
}

void LateDeletes::Done(Deletion deletion, bool is_confirmed) {
  const size_t keys = KeysOf(deletion);
  const MutexLock lock(mutex_);
  busy_.erase(deletion.member);
  if (is_confirmed) return confirmed_.Add(keys);
  if (keys_ + keys > kKeysMax) return given_up_.Add(keys);  // it is the oldest
  keys_ += keys;
  waiting_.push_front(std::move(deletion));
}

size_t LateDeletes::key_count() const {
  const MutexLock lock(mutex_);
  return keys_;
}

void LateDeletes::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_peer_late_deletes",
                "Deleted blocks, once for each member that has not confirmed the deletion yet.", {},
                static_cast<double>(key_count()));
  const auto add = [&sink](std::string_view outcome, const Counter& counter) {
    const MetricLabel label{"outcome", outcome};
    sink.AddCounter("cairn_peer_late_deletes_total",
                    "Deleted blocks that members confirmed late, or did not confirm in time.",
                    {&label, 1}, counter.Value());
  };
  add("confirmed", confirmed_);
  add("given_up", given_up_);
}

}  // namespace cairn
