// SPDX-License-Identifier: Apache-2.0
#include "service/index/announce_ring.h"

#include <algorithm>

#include "base/check.h"

namespace cairn {

AnnounceRing::AnnounceRing(size_t entries_max) : kept_(entries_max) {
  CAIRN_CHECK(entries_max > 0);
}

void AnnounceRing::Append(const Announcement& announcement) {
  const MutexLock lock(mutex_);
  const uint64_t number = next();
  kept_[number % kept_.size()] = announcement;
  next_.store(number + 1, std::memory_order_relaxed);
  if (is_awaited_) changed_.NotifyAll();
}

bool AnnounceRing::Read(uint64_t* cursor, size_t count_max,
                        std::vector<Announcement>* entries) const {
  const MutexLock lock(mutex_);
  if (*cursor > next() || next() - *cursor > kept_.size()) {
    *cursor = next();
    return false;
  }
  const uint64_t end = std::min<uint64_t>(next(), *cursor + count_max);
  for (; *cursor < end; ++*cursor) entries->push_back(kept_[*cursor % kept_.size()]);
  return true;
}

void AnnounceRing::Await(std::optional<uint64_t> cursor, absl::Time deadline) const {
  const MutexLock lock(mutex_);
  is_awaited_ = cursor.has_value();
  while (!is_woken_ && cursor.value_or(next()) == next() && changed_.WaitUntil(mutex_, deadline)) {
  }
  is_awaited_ = false;
  is_woken_ = false;
}

void AnnounceRing::Wake() const {
  const MutexLock lock(mutex_);
  is_woken_ = true;
  changed_.NotifyAll();
}

}  // namespace cairn
