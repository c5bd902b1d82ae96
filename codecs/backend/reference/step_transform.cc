// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/reference/step.h"

namespace cairn::codecs::reference {
namespace {

template <Pair (*kTurn)(Pair, Rotation)>
void Turn(const StepTile& tile, uint64_t position, float* values) {
  for (uint32_t i = 0; i < tile.pairs; ++i) {
    float& first = values[tile.profile->PairFirst(i)];
    float& second = values[tile.profile->PairSecond(i)];
    const Rotation by = RotationAt(tile.profile->PairTurns(i), position);
    const Pair turned = kTurn({first, second}, by);
    first = turned.first;
    second = turned.second;
  }
}

}  // namespace

void StepForward(const StepTile& tile, uint64_t position, const float* values, float* centred) {
  float x[kProfileDimMax];
  for (uint32_t c = 0; c < tile.dim; ++c) x[c] = values[c];
  Turn<TurnBack>(tile, position, x);
  for (uint32_t c = 0; c < tile.dim; ++c) x[c] = Add(x[c], -tile.channels[c].mean);
  if (!tile.has_basis) {
    for (uint32_t c = 0; c < tile.dim; ++c) centred[c] = x[c];
    return;
  }
  for (uint32_t j = 0; j < tile.dim; ++j) centred[j] = 0.0F;
  for (uint32_t c = 0; c < tile.dim; ++c) {
    const float scaled = Multiply(x[c], tile.profile->Scale(tile.at, c));
    for (uint32_t j = 0; j < tile.dim; ++j) {
      centred[j] = Add(centred[j], Multiply(tile.profile->Vector(tile.at, c, j), scaled));
    }
  }
}

void StepBack(const StepTile& tile, uint64_t position, const float* centred, float* values) {
  for (uint32_t c = 0; c < tile.dim; ++c) {
    float x = centred[c];
    if (tile.has_basis) {
      x = 0.0F;
      for (uint32_t j = 0; j < tile.dim; ++j) {
        x = Add(x, Multiply(tile.profile->Vector(tile.at, c, j), centred[j]));
      }
      x = Multiply(x, tile.profile->ScaleInverse(tile.at, c));
    }
    values[c] = Add(x, tile.channels[c].mean);
  }
  Turn<TurnForth>(tile, position, values);
}

}  // namespace cairn::codecs::reference
