// SPDX-License-Identifier: Apache-2.0
#pragma once
// The score of a token as the recipe `arkv` stores it: how important it is to attention.
//
// Thread-safety: pure functions. Free of the standard library, for hosts and devices.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

inline constexpr uint16_t kScoreInfinite = 0x7C00;
inline constexpr uint16_t kScoreMax = 0x7BFF;  // of others

// As it is stored, fp16 bits, which are in the order of scores: to nearest even, past the largest
// finite it is that, and 0 for NaN and what is not above 0.
CAIRN_HD uint16_t StoredScore(float score) {
  if (!(score > 0.0F)) return 0;
  if (FloatBits(score) == 0x7F800000) return kScoreInfinite;
  const uint16_t bits = FloatToFp16(score, Fp16Rounding::kNearestEven);
  return bits < kScoreMax ? bits : kScoreMax;
}

}  // namespace cairn::codecs
