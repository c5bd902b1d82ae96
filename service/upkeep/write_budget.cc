// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/write_budget.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "service/limits.h"

namespace cairn {
namespace {

// The budget is short if less than this part of a day's bytes is left.
constexpr double kShortShare = 1.0 / 16;

size_t SeenCount(uint64_t blocks_max) {
  return std::bit_ceil(std::clamp<uint64_t>(4 * blocks_max, 1024, limits::kWriteBudgetSeenMax));
}

}  // namespace

WriteBudget::WriteBudget(uint64_t bytes_per_day, uint64_t blocks_max, absl::Time now)
    : bytes_per_day_(bytes_per_day),
      left_(static_cast<double>(bytes_per_day) / limits::kWriteBudgetStartShare),
      looked_(now),
      seen_(bytes_per_day == 0 ? 0 : SeenCount(blocks_max)) {}

WriteBudget::State WriteBudget::Look(absl::Time now) {
  if (bytes_per_day_ == 0) {
    return State::kAmple;
  }
  const auto day = static_cast<double>(bytes_per_day_);
  left_ = std::min(day, left_ + BytesPerSecond() * absl::ToDoubleSeconds(now - looked_));
  looked_ = now;
  return left_ <= 0 ? State::kSpent : left_ < day * kShortShare ? State::kShort : State::kAmple;
}

absl::Time WriteBudget::RefilledAt(absl::Time now) const {
  return now + absl::Seconds(std::max(1.0, -left_ / BytesPerSecond()));
}

bool WriteBudget::See(const proto::BlockKey& key) {  // keys are hashes
  uint64_t place = 0;
  uint32_t part = 0;
  std::memcpy(&place, key.data(), sizeof(place));
  std::memcpy(&part, key.data() + sizeof(place), sizeof(part));
  part |= 1;
  uint32_t& seen = seen_[place & (seen_.size() - 1)];
  const bool was_seen = seen == part;
  seen = part;
  return was_seen;
}

}  // namespace cairn
