// SPDX-License-Identifier: Apache-2.0
#include "service/index/asked_keys.h"

#include <bit>
#include <cmath>

#include "absl/hash/hash.h"

namespace cairn {

void AskedKeys::Add(uint64_t space_id, absl::Span<const proto::BlockKey> keys, size_t found) {
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t hash = absl::HashOf(space_id, keys[i]);
    uint8_t& longest = longest_[hash & (kRegisters - 1)];
    const uint64_t rest = (hash >> kRegisterBits) | 1;  // bounds the run if all is 0
    const int run = std::countl_zero(rest) - kRegisterBits + 1;
    if (run <= longest) {
      continue;
    }
    if (i >= found) {
      first_misses_ += kRegisters / weight_;
    }
    weight_ += std::ldexp(1.0, -run) - std::ldexp(1.0, -longest);
    longest = static_cast<uint8_t>(run);
  }
}

uint64_t AskedKeys::first_misses() const {
  const MutexLock lock(mutex_);
  return static_cast<uint64_t>(first_misses_);
}

}  // namespace cairn
