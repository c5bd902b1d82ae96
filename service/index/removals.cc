// SPDX-License-Identifier: Apache-2.0
#include "service/index/removals.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "base/check.h"

namespace cairn {

Removals::Removals(uint32_t capacity, uint32_t start_unix_s)
    : capacity_(std::min(capacity, kNone)),
      buckets_(capacity_, kNone),
      since_unix_s_(start_unix_s) {
  CAIRN_CHECK(capacity_ > 0);
  entries_.reserve(capacity_);
}

void Removals::Add(const BlockName& name, RemovalReason reason, uint32_t at_unix_s) {
  if (entries_.size() < capacity_) {
    entries_.emplace_back();
  } else {
    is_full_ = true;
    Forget(next_);
  }
  Entry& entry = entries_[next_];
  entry.hash = absl::HashOf(name);
  entry.at_unix_s = at_unix_s;
  entry.reason = static_cast<uint32_t>(reason) & ((1U << kReasonBits) - 1);
  uint32_t& bucket = buckets_[entry.hash % capacity_];
  entry.next = bucket & kNone;
  bucket = next_;
  next_ = next_ + 1 == capacity_ ? 0 : next_ + 1;
}

std::optional<Removal> Removals::Find(const BlockName& name) const {
  const uint64_t hash = absl::HashOf(name);
  for (uint32_t index = buckets_[hash % capacity_]; index != kNone; index = entries_[index].next) {
    const Entry& entry = entries_[index];
    if (entry.hash == hash) {
      return Removal{static_cast<RemovalReason>(entry.reason), entry.at_unix_s};
    }
  }
  return std::nullopt;
}

void Removals::Forget(uint32_t index) {
  const Entry& entry = entries_[index];
  since_unix_s_ = std::max(since_unix_s_, entry.at_unix_s);
  uint32_t& bucket = buckets_[entry.hash % capacity_];
  if (bucket == index) {
    bucket = entry.next;
    return;
  }
  // The loop ends, because the entry is the oldest of its bucket.
  uint32_t before = bucket;
  while (entries_[before].next != index) {
    before = entries_[before].next;
  }
  entries_[before].next = entry.next;
}

}  // namespace cairn
