// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arithmetic of the k-means that mines a bank's patterns (docs/recipes/patternkv.md, section
// 3). Means are sums of integers, so their order does not matter. Distances are summed in the order
// of codecs/backend/reference/token_norm.h. Every implementation, with any number of threads, gets
// the same bits.
//
// Thread-safety: pure functions. Free of the standard library, for hosts and devices.

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

// Converts to units of 2^-24, rounded towards zero.
// REQUIRES: !IsRowValue(value). Fewer than 2^24 results are added up.
CAIRN_HD int64_t ClusterUnits(float value) {
  return static_cast<int64_t>(Multiply(value, 16777216.0F));
}

// Returns the mean of 1 or more points from the sum of their units.
CAIRN_HD float ClusterMean(int64_t units, uint32_t points) {
  return Multiply(static_cast<float>(units / static_cast<int64_t>(points)), 5.9604644775390625e-8F);
}

CAIRN_HD bool HasMoved(float from, float to) {
  const float moved = Add(to, -from);
  return moved > kClusterMoveMax || moved < -kClusterMoveMax;
}

}  // namespace cairn::codecs
