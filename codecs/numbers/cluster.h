// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arithmetic of the k-means that mines a bank's patterns (docs/recipes/patternkv.md, section
// 3). Means are sums of integers, so the order of additions does not matter. Distances are summed
// in the order of codecs/backend/reference/token_norm.h. So every implementation gets the same
// bits, with any number of threads.
//
// Thread-safety: pure functions. Free of the standard library, so that hosts and devices can use
// them.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

inline constexpr uint32_t kClusterRoundsMax = 30;
inline constexpr float kClusterMoveMax = 1e-4F;  // a centre that moves at most this much has
                                                 // converged

// Returns the point from which centre `index` of `centres` starts. Starting points are evenly
// spaced.
CAIRN_HD uint32_t SeedOf(uint32_t index, uint32_t centres, uint32_t points) {
  return static_cast<uint32_t>(static_cast<uint64_t>(index) * points / centres);
}

// Converts a value to units of 2^-24, rounded towards zero. Fewer than 2^24 results may be added
// up. REQUIRES: !IsRowValue(value).
CAIRN_HD int64_t ClusterUnits(float value) {
  return static_cast<int64_t>(Multiply(value, 16777216.0F));
}

// Returns the mean of one or more points. `units` is the sum of their ClusterUnits().
CAIRN_HD float ClusterMean(int64_t units, uint32_t points) {
  return Multiply(static_cast<float>(units / static_cast<int64_t>(points)), 5.9604644775390625e-8F);
}

CAIRN_HD bool HasMoved(float from, float to) {
  const float moved = Add(to, -from);
  return moved > kClusterMoveMax || moved < -kClusterMoveMax;
}

}  // namespace cairn::codecs
