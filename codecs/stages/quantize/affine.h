// SPDX-License-Identifier: Apache-2.0
#pragma once
// The quantize stage "affine": codes with a (min, range) per group. Min and range are fp16; both
// are rounded to fp16 before codes are computed with them. A group of K or latents is some tokens
// of a channel; a group of V is some channels of a token.

#include "codecs/stages/stages.h"

namespace cairn::codecs {

bool QuantizeAffine(const Backend& backend, const TileSource& source, TilePlan* plan,
                    uint8_t* codes, uint8_t* params);

// Quantizes the residual instead, which is the values minus the prediction of the plan.
bool QuantizePredicted(const Backend& backend, const TileSource& source, TilePlan* plan,
                       uint8_t* codes, uint8_t* params);

// Decodes every token of a tile, including rows. The layout gives the offsets of codes and params.
void DecodeAffine(const Backend& backend, const AffineTile& tile, const TileGeometry& geometry,
                  const TileLayout& layout, const uint8_t* content, uint8_t* target);

}  // namespace cairn::codecs
