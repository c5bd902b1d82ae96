// SPDX-License-Identifier: Apache-2.0
#pragma once
// The score of a token as the recipe `arkv` stores it. It says how important the token is to
// attention.
//
// Thread-safety: pure functions. Free of the standard library, so that hosts and devices can use
// them.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

inline constexpr uint16_t kScoreInfinite = 0x7C00;
inline constexpr uint16_t kScoreMax = 0x7BFF;  // the largest finite score

// Returns the stored form of a score: fp16 bits, whose order is that of scores. A finite score is
// rounded to nearest even, but at most to kScoreMax. Infinity becomes kScoreInfinite. NaN and
// scores not above 0 become 0.
CAIRN_HD uint16_t StoredScore(float score) {
  if (!(score > 0.0F)) return 0;
  if (FloatBits(score) == 0x7F800000) return kScoreInfinite;
  const uint16_t bits = FloatToFp16(score, Fp16Rounding::kNearestEven);
  return bits < kScoreMax ? bits : kScoreMax;
}

}  // namespace cairn::codecs
