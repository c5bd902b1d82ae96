// SPDX-License-Identifier: Apache-2.0
#pragma once
// The token scores of the recipe `arkv` (ARKV, 2026, section 3.3). They are stored with K, and
// readers use them to choose the tokens to attend to. Tokens of infinite score are stored as rows.
//
// Thread-safety: pure functions.

#include "codecs/backend/backend.h"
#include "codecs/numbers/score.h"
#include "codecs/stages/stages.h"

namespace cairn::codecs {

// Adds these tokens to the plan's rows: tokens that cannot be coded, token 0 of a chain, and tokens
// of infinite score.
void SelectProtected(const Backend& backend, const TileSource& source, TilePlan* plan);

// Writes the scores of the source's tokens.
//   target  an fp16 per token
void StoreScores(const TileSource& source, uint8_t* target);

// Returns true if the scores are valid: no score is NaN or negative, token 0 of a chain has an
// infinite score, and all tokens of infinite score are rows.
//   positions  rows * u16, ascending
[[nodiscard]] bool AreScores(uint64_t first_position, uint32_t tokens, const uint8_t* scores,
                             const uint8_t* positions, uint32_t rows);

}  // namespace cairn::codecs
