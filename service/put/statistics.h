// SPDX-License-Identifier: Apache-2.0
#pragma once
// What comes with a put besides the KV (docs/internals/formats/frame.md).

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

// A statistic that was not given is empty. Thread-safety: Thread-compatible.
class Statistics {
 public:
  std::vector<float>& of(proto::Statistic kind) { return values_[static_cast<size_t>(kind)]; }
  const std::vector<float>& of(proto::Statistic kind) const {
    return values_[static_cast<size_t>(kind)];
  }

 private:
  std::array<std::vector<float>, proto::kStatisticCount> values_;
};

// The bytes that these statistics of an image take at the end of its payload.
uint64_t StatisticsBytes(proto::StatisticSet kinds, const codecs::ImageSpec& spec);
// Turns those bytes into numbers. InvalidArgument names the first that is not allowed.
// REQUIRES: bytes.size() == StatisticsBytes(kinds, spec).
absl::StatusOr<Statistics> ReadStatistics(proto::StatisticSet kinds, const codecs::ImageSpec& spec,
                                          std::span<const std::byte> bytes);
// Whether the recipe's encoder reads one of them.
bool AreCodedWith(proto::StatisticSet kinds, const codecs::Recipe& recipe);

}  // namespace cairn
