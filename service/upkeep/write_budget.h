// SPDX-License-Identifier: Apache-2.0
#pragma once
// What may be written to a tier whose drives wear: so many bytes a day. What is not used carries
// over, for a day at most. While little is left, a block is written at its second sighting only.
//
// Thread-safety: Thread-compatible.

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "proto/block_key.h"

namespace cairn {

class WriteBudget {
 public:
  enum class State : uint8_t {
    kAmple,
    kShort,  // blocks that were seen before
    kSpent,  // nothing
  };

  // `bytes_per_day`: 0 for no bound. Begins with limits::kWriteBudgetStartShare of a day's.
  // `blocks_max`: that the tier may hold; it remembers four times as many, up to a bound.
  WriteBudget(uint64_t bytes_per_day, uint64_t blocks_max, absl::Time now);

  // Adds what the time since the last look gives.
  State Look(absl::Time now);
  void Spend(uint64_t bytes) { left_ -= bytes_per_day_ == 0 ? 0 : static_cast<double>(bytes); }
  // When it is spent no more. REQUIRES: it is now.
  absl::Time RefilledAt(absl::Time now) const;
  // Whether the block was seen before, as far as is remembered; now it was.
  bool See(const proto::BlockKey& key);

  uint64_t bytes_per_day() const { return bytes_per_day_; }
  double left() const { return left_; }  // below 0: a write took more than there was

 private:
  double BytesPerSecond() const { return static_cast<double>(bytes_per_day_) / 86'400; }

  const uint64_t bytes_per_day_;
  double left_;
  absl::Time looked_;
  std::vector<uint32_t> seen_;  // part of a key where another part of it says; 0: none
};

}  // namespace cairn
