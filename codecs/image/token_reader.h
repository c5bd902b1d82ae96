// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads what images store about tokens: the scores of `arkv`, and for `arkv:paper` the map of the
// tokens that an image has. PlanTokens() of codecs/stages/select/token_plan.h uses the scores of a
// chain to choose the tokens that a reader keeps.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <cstdint>
#include <span>

#include "codecs/image/image.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Reads the stored scores of a head's tokens. They are not negative. All are infinite if the head's
// K tile is raw, and 0 if the image has another recipe.
//   view    parsed and verified
//   scores  view.spec().tokens
// Errors: kInvalidSlice (the image has no such head).
Error ReadScores(const ImageView& view, uint16_t layer, uint16_t head, std::span<float> scores);

// Sets kept[i] to 1 if both K and V have token i, else to 0. A token with 0 decodes to zeros;
// exclude it from attention. All are 1 if the recipe evicts no tokens.
//   view  parsed and verified
//   kept  view.spec().tokens
// Errors: kInvalidSlice (the image has no such head).
Error ReadKept(const ImageView& view, uint16_t layer, uint16_t head, std::span<uint8_t> kept);

}  // namespace cairn::codecs
