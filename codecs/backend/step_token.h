// SPDX-License-Identifier: Apache-2.0
#pragma once
// Removes RoPE and the mean from the elements of one token and transforms them to the basis. Also
// does the inverse. Results are values, not multiples of a quantizer step.
//
// Thread-safety: pure functions. Free of the standard library, so that hosts and devices can use
// them.

#include <cstdint>

#include "codecs/backend/step_tile.h"
#include "codecs/numbers/static_step.h"
#include "codecs/pack/elements.h"

namespace cairn::codecs {

template <bool kIsApplied>
CAIRN_HD void RotateToken(const StepPairs& pairs, uint64_t position, float* values) {
  for (uint32_t i = 0; i < pairs.count; ++i) {
    float& first = values[pairs.first + i * pairs.step];
    float& second = values[pairs.first + i * pairs.step + pairs.distance];
    const Rotation by = RotationAt(Load64(pairs.turns + 8 * static_cast<uint64_t>(i)), position);
    const Pair turned =
        kIsApplied ? ApplyRope({first, second}, by) : RemoveRope({first, second}, by);
    first = turned.first;
    second = turned.second;
  }
}

// The scale of a channel of a basis.
CAIRN_HD float BasisScale(const uint8_t* scales, uint32_t channel) {
  return BitsFloat(Load32(scales + 4 * static_cast<uint64_t>(channel)));
}
CAIRN_HD float BasisValue(const StepBasis& basis, uint32_t dim, uint32_t channel,
                          uint32_t component) {
  return LoadPatternValue(basis.vectors + 2 * static_cast<uint64_t>(channel) * dim, component);
}

CAIRN_HD void StepForward(const StepTile& tile, uint64_t position, const float* values,
                          float* centred) {
  float x[kProfileDimMax];
  for (uint32_t c = 0; c < tile.dim; ++c) x[c] = values[c];
  RotateToken<false>(tile.turning, position, x);
  for (uint32_t c = 0; c < tile.dim; ++c) x[c] = Add(x[c], -tile.channels[c].mean);
  if (!tile.has_basis) {
    for (uint32_t c = 0; c < tile.dim; ++c) centred[c] = x[c];
    return;
  }
  for (uint32_t c = 0; c < tile.dim; ++c) x[c] = Multiply(x[c], BasisScale(tile.basis.scale, c));
  for (uint32_t j = 0; j < tile.dim; ++j) {
    centred[j] =
        BasisSum(tile.dim, x, [&](uint32_t c) { return BasisValue(tile.basis, tile.dim, c, j); });
  }
}

CAIRN_HD void StepBack(const StepTile& tile, uint64_t position, const float* centred,
                       float* values) {
  for (uint32_t c = 0; c < tile.dim; ++c) {
    float x = centred[c];
    if (tile.has_basis) {
      x = BasisSum(tile.dim, centred,
                   [&](uint32_t j) { return BasisValue(tile.basis, tile.dim, c, j); });
      x = Multiply(x, BasisScale(tile.basis.scale_inverse, c));
    }
    values[c] = Add(x, tile.channels[c].mean);
  }
  RotateToken<true>(tile.turning, position, values);
}

}  // namespace cairn::codecs
