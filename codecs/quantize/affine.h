// SPDX-License-Identifier: Apache-2.0
#pragma once
// The quantize stage "affine": codes between a (min, range) a group, both fp16, rounded before they
// are used. K and latents by channel over tokens, V by token over channels.

#include "codecs/stages.h"

namespace cairn::codecs {

bool QuantizeAffine(const Backend& backend, const TileSource& source, TilePlan* plan,
                    uint8_t* codes, uint8_t* params);

// The same of what the plan's prediction leaves. The reference's loops, on every backend.
bool QuantizePredicted(const Backend& backend, const TileSource& source, TilePlan* plan,
                       uint8_t* codes, uint8_t* params);

}  // namespace cairn::codecs
