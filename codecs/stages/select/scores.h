// SPDX-License-Identifier: Apache-2.0
#pragma once
// The recipe `arkv`: what each token is worth to its readers, kept with K (ARKV, 2026,
// section 3.3), so that they choose what they attend to. Tokens of infinite worth are rows.
//
// Thread-safety: pure functions.

#include "codecs/backend/backend.h"
#include "codecs/numbers/math.h"
#include "codecs/stages/stages.h"

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

// What cannot be coded and what is worth everything: token 0 of a chain, and where scores say so.
void SelectProtected(const Backend& backend, const TileSource& source, TilePlan* plan);

//   target  fp16 a token
void StoreScores(const TileSource& source, uint8_t* target);

// No NaN, none below 0, and those of infinite worth, token 0 of a chain among them, are rows.
//   positions  rows * u16, ascending
[[nodiscard]] bool AreScores(uint64_t first_position, uint32_t tokens, const uint8_t* scores,
                             const uint8_t* positions, uint32_t rows);

}  // namespace cairn::codecs
