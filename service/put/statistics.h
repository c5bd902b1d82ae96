// SPDX-License-Identifier: Apache-2.0
#pragma once
// The statistics that come with a put (docs/internals/formats/frame.md).

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "codecs/image/image.h"
#include "codecs/recipe/recipe.h"
#include "proto/frame.h"

namespace cairn {

// The statistics of one put. Statistics that the put does not have are empty. Thread-compatible.
class Statistics {
 public:
  std::vector<float>& of(proto::Statistic kind) { return values_[static_cast<size_t>(kind)]; }
  const std::vector<float>& of(proto::Statistic kind) const {
    return values_[static_cast<size_t>(kind)];
  }

 private:
  std::array<std::vector<float>, proto::kStatisticCount> values_;
};

// Returns the size of these statistics, which are at the end of the put's payload.
uint64_t StatisticsBytes(proto::StatisticSet kinds, const codecs::ImageSpec& spec);
// Returns the size of the block's token ids, which end the payload. Returns 0 if there are none.
inline uint64_t TokensBytes(const proto::Put& put) {
  return put.has_tokens ? put.tokens * sizeof(uint32_t) : 0;
}
// Parses the statistics. Errors: InvalidArgument, naming the first value that is not allowed.
// REQUIRES: bytes.size() == StatisticsBytes(kinds, spec).
absl::StatusOr<Statistics> ReadStatistics(proto::StatisticSet kinds, const codecs::ImageSpec& spec,
                                          std::span<const std::byte> bytes);
// Returns true if the recipe's encoder reads at least one of the statistics.
bool AreCodedWith(proto::StatisticSet kinds, const codecs::Recipe& recipe);

}  // namespace cairn
