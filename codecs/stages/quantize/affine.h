// SPDX-License-Identifier: Apache-2.0
#pragma once
// The quantize stage "affine": codes with a (min, range) per group. Both are fp16 and are rounded
// before they are used. Groups of K and latents are tokens of a channel; groups of V are channels
// of a token.

#include "codecs/stages/stages.h"

namespace cairn::codecs {

bool QuantizeAffine(const Backend& backend, const TileSource& source, TilePlan* plan,
                    uint8_t* codes, uint8_t* params);

// The same for the residual, the values minus the prediction of the plan.
bool QuantizePredicted(const Backend& backend, const TileSource& source, TilePlan* plan,
                       uint8_t* codes, uint8_t* params);

// Decodes every token of a tile, rows included. The layout gives the offsets of codes and params.
void DecodeAffine(const Backend& backend, const AffineTile& tile, const TileGeometry& geometry,
                  const TileLayout& layout, const uint8_t* content, uint8_t* target);

}  // namespace cairn::codecs
