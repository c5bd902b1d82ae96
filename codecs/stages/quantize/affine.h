// SPDX-License-Identifier: Apache-2.0
#pragma once
// The quantize stage "affine": codes between a (min, range) a group, both fp16, rounded before they
// are used. K and latents by channel over tokens, V by token over channels.

#include "codecs/stages/stages.h"

namespace cairn::codecs {

bool QuantizeAffine(const Backend& backend, const TileSource& source, TilePlan* plan,
                    uint8_t* codes, uint8_t* params);

// The same of what the plan's prediction leaves.
bool QuantizePredicted(const Backend& backend, const TileSource& source, TilePlan* plan,
                       uint8_t* codes, uint8_t* params);

// And back, of a tile that has codes and params where the layout says: every token, rows included.
void DecodeAffine(const Backend& backend, const AffineTile& tile, const TileGeometry& geometry,
                  const TileLayout& layout, const uint8_t* content, uint8_t* target);

}  // namespace cairn::codecs
