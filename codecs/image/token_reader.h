// SPDX-License-Identifier: Apache-2.0
#pragma once
// What images say of tokens beside their elements: the scores of `arkv`, and which
// tokens of `arkv:paper` there still are. PlanTokens() of
// codecs/stages/select/token_plan.h makes of a chain's scores what a reader keeps.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <cstdint>
#include <span>

#include "codecs/image/image.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// The scores of a head's tokens, as they are stored: not negative; infinite for all where its tile
// of K is raw, 0 for all where the image is of another recipe. So of any image, and of images of a
// chain one after the other.
//   view    parsed and verified
//   scores  view.spec().tokens
// kInvalidSlice: the image has no such head.
Error ReadScores(const ImageView& view, uint16_t layer, uint16_t head, std::span<float> scores);

// 1 for each of the head's tokens that K and V both have, else 0: what decodes to zeros is to be
// left out of attention. All 1 where the image's recipe evicts nothing.
//   view  parsed and verified
//   kept  view.spec().tokens
// kInvalidSlice: the image has no such head.
Error ReadKept(const ImageView& view, uint16_t layer, uint16_t head, std::span<uint8_t> kept);

}  // namespace cairn::codecs
