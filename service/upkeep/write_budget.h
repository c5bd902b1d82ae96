// SPDX-License-Identifier: Apache-2.0
#pragma once
// A daily budget of bytes for writes to a tier whose drives wear. Unused budget is kept for at most
// a day. While little of the budget is left, a block is written only if it is used again.
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
    kShort,  // write only blocks that were used before
    kSpent,  // write nothing
  };

  // `bytes_per_day` is the budget; 0 means no limit. At start, limits::kWriteBudgetStartShare of a
  // day's budget is left. `blocks_max` is the capacity of the tier. The object remembers seen
  // blocks: four times as many as that, up to a limit.
  WriteBudget(uint64_t bytes_per_day, uint64_t blocks_max, absl::Time now);

  // Adds the budget for the time since the last call. Returns the state.
  State Look(absl::Time now);
  void Spend(uint64_t bytes) { left_ -= bytes_per_day_ == 0 ? 0 : static_cast<double>(bytes); }
  // Returns the time at which there will be budget again. REQUIRES: the state is kSpent.
  absl::Time RefilledAt(absl::Time now) const;
  // Remembers the block. Returns true if the block was remembered before. Blocks may be forgotten.
  bool See(const proto::BlockKey& key);

  uint64_t bytes_per_day() const { return bytes_per_day_; }
  double left() const { return left_; }  // negative if a write has exceeded the budget

 private:
  double BytesPerSecond() const { return static_cast<double>(bytes_per_day_) / 86'400; }

  const uint64_t bytes_per_day_;
  double left_;
  absl::Time looked_;
  std::vector<uint32_t> seen_;  // a part of each key, placed by another part; 0: none
};

}  // namespace cairn
