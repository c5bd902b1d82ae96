// SPDX-License-Identifier: Apache-2.0
#pragma once
// The recipe `arkv`: what each token is worth to its readers, kept with K (ARKV, 2026,
// section 3.3), so that they choose what they attend to. Tokens of infinite worth are rows.
//
// Thread-safety: pure functions.

#include "codecs/backend/backend.h"
#include "codecs/numbers/score.h"
#include "codecs/stages/stages.h"

namespace cairn::codecs {

// What cannot be coded and what is worth everything: token 0 of a chain, and where scores say so.
void SelectProtected(const Backend& backend, const TileSource& source, TilePlan* plan);

//   target  fp16 a token
void StoreScores(const TileSource& source, uint8_t* target);

// No NaN, none below 0, and those of infinite worth, token 0 of a chain among them, are rows.
//   positions  rows * u16, ascending
[[nodiscard]] bool AreScores(uint64_t first_position, uint32_t tokens, const uint8_t* scores,
                             const uint8_t* positions, uint32_t rows);

}  // namespace cairn::codecs
