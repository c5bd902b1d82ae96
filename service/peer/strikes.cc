// SPDX-License-Identifier: Apache-2.0
#include "service/peer/strikes.h"

#include <algorithm>

namespace cairn {

bool Strikes::Note(std::string_view member, uint64_t incarnation, const Delivered& delivered,
                   absl::Time now) {
  const MutexLock lock(mutex_);
  auto found = records_.find(member);
  if (delivered.damaged == 0 && delivered.missing == 0 && found == records_.end()) return false;
  if (found == records_.end()) found = records_.try_emplace(std::string(member)).first;
  Record& record = found->second;
  if (record.incarnation != incarnation) record = Record{.incarnation = incarnation};
  if (delivered.whole > 0) {
    record.broken = 0;
    record.aside = kAsideMin;
  } else if (delivered.missing > 0 && ++record.broken >= kBrokenMax) {
    record.aside_until = now + record.aside;
    record.aside = std::min(record.aside * 2, kAsideMax);
  }
  for (uint64_t i = 0; i < std::min<uint64_t>(delivered.damaged, kDamagedMax); ++i) {
    record.damaged.push_back(now);
    if (record.damaged.size() > kDamagedMax) record.damaged.pop_front();
  }
  if (record.is_distrusted || record.damaged.size() < kDamagedMax ||
      now - record.damaged.front() >= kDamagedTime) {
    return false;
  }
  record.is_distrusted = true;
  return true;
}

absl::Status Strikes::MayRead(std::string_view member, uint64_t incarnation, absl::Time now) const {
  const MutexLock lock(mutex_);
  const auto found = records_.find(member);
  if (found == records_.end() || found->second.incarnation != incarnation) return absl::OkStatus();
  if (found->second.is_distrusted) {
    return absl::UnavailableError("not read from until it restarts: it delivered damaged blocks");
  }
  if (now < found->second.aside_until) {
    return absl::UnavailableError("not read from for a while: it lacked blocks that it had leased");
  }
  return absl::OkStatus();
}

void Strikes::Keep(const View& view) {
  const MutexLock lock(mutex_);
  std::erase_if(records_, [&view](const auto& one) { return view.Find(one.first) == nullptr; });
}

size_t Strikes::distrusted_count() const {
  const MutexLock lock(mutex_);
  return static_cast<size_t>(
      std::ranges::count_if(records_, [](const auto& one) { return one.second.is_distrusted; }));
}

}  // namespace cairn
