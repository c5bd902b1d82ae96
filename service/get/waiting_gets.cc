// SPDX-License-Identifier: Apache-2.0
#include "service/get/waiting_gets.h"

#include "base/check.h"
#include "service/get/steps.h"
#include "service/limits.h"

namespace cairn {

WaitingGets::WaitingGets() = default;
WaitingGets::~WaitingGets() = default;

WaitingGets::Id WaitingGets::Open() {
  const MutexLock lock(mutex_);
  if (entries_.size() >= limits::kWaitingGetsMax) {
    return 0;
  }
  entries_.try_emplace(++last_id_);
  return last_id_;
}

void WaitingGets::Close(Id id) {
  const MutexLock lock(mutex_);
  entries_.erase(id);
}

std::unique_ptr<GetRun> WaitingGets::Wait(Id id, std::unique_ptr<GetRun> run, size_t reads,
                                          absl::Time deadline) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  CAIRN_CHECK(found != entries_.end() && found->second.run == nullptr);
  Entry& entry = found->second;
  if (entry.arrived == reads) {
    entries_.erase(found);
    return run;
  }
  entry.run = std::move(run);
  entry.reads = reads;
  entry.deadline = deadline;
  deadlines_.emplace(deadline, id);
  return nullptr;
}

std::unique_ptr<GetRun> WaitingGets::Arrived(Id id) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    return nullptr;
  }
  Entry& entry = found->second;
  ++entry.arrived;
  return entry.run != nullptr && entry.arrived == entry.reads ? Take(id) : nullptr;
}

std::vector<std::unique_ptr<GetRun>> WaitingGets::TakeLate(absl::Time now) {
  std::vector<std::unique_ptr<GetRun>> late;
  const MutexLock lock(mutex_);
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    late.push_back(Take(deadlines_.begin()->second));
  }
  return late;
}

absl::Time WaitingGets::next_deadline() const {
  const MutexLock lock(mutex_);
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

size_t WaitingGets::count() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

std::unique_ptr<GetRun> WaitingGets::Take(Id id) {
  const auto found = entries_.find(id);
  std::unique_ptr<GetRun> run = std::move(found->second.run);
  deadlines_.erase({found->second.deadline, id});
  entries_.erase(found);
  return run;
}

}  // namespace cairn
