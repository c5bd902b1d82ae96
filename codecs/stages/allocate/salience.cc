// SPDX-License-Identifier: Apache-2.0
#include "codecs/stages/allocate/salience.h"

#include <algorithm>

#include "codecs/backend/reference/reference.h"
#include "codecs/numbers/static_step.h"

namespace cairn::codecs {
namespace {

float MagnitudeOf(const TileSource& source, uint32_t channel) {
  if (source.query_magnitudes != nullptr) return source.query_magnitudes[channel];
  if (source.profile == nullptr || source.profile->HasBasis()) return 1.0F;
  // The step is inversely proportional to the magnitude of queries.
  return Exp2(-source.profile->Channel(0, source.at, channel).step_log);
}

void FindSaliences(const TileSource& source, const TilePlan& plan, float* saliences) {
  const TileGeometry& geometry = source.geometry;
  float low[kDimMax];
  float high[kDimMax];
  bool is_first = true;
  for (uint32_t token = 0; token < geometry.rows; ++token) {
    if (plan.IsRow(token)) continue;
    for (uint32_t c = 0; c < geometry.dim; ++c) {
      const float value =
          reference::LoadElement(geometry.dtype, source.bytes, uint64_t{token} * geometry.dim + c);
      if (is_first || value < low[c]) low[c] = value;
      if (is_first || value > high[c]) high[c] = value;
    }
    is_first = false;
  }
  for (uint32_t c = 0; c < geometry.dim; ++c) {
    saliences[c] = is_first ? 0.0F : Salience(MagnitudeOf(source, c), low[c], high[c]);
  }
}

// Gives 4 bits to the channels of largest salience; among equals, to the first.
void SpendBudget(uint32_t dim, const float* saliences, ChannelClasses* classes) {
  uint16_t order[kDimMax];
  for (uint32_t c = 0; c < dim; ++c) order[c] = static_cast<uint16_t>(c);
  std::sort(order, order + dim, [&](uint16_t a, uint16_t b) {
    return saliences[a] != saliences[b] ? saliences[a] > saliences[b] : a < b;
  });
  for (uint32_t c = 0; c < dim; ++c) classes->of[c] = ChannelClass::kTwoBits;
  for (uint32_t i = 0; i < FourBitChannels(dim); ++i) {
    classes->of[order[i]] = ChannelClass::kFourBits;
  }
}

}  // namespace

void AllocateBySalience(const Recipe& recipe, const TileSource& source, const TilePlan& plan,
                        ChannelClasses* classes) {
  const uint32_t dim = source.geometry.dim;
  float saliences[kDimMax];
  FindSaliences(source, plan, saliences);
  const auto variant = static_cast<MixedVariant>(recipe.variant);
  if (variant == MixedVariant::kBudget) {
    SpendBudget(dim, saliences, classes);
  } else {
    for (uint32_t c = 0; c < dim; ++c) {
      classes->of[c] = ClassAbove(saliences[c], ThresholdsOf(variant));
    }
  }
  for (uint32_t& count : classes->counts) count = 0;
  for (uint32_t c = 0; c < dim; ++c) ++classes->counts[static_cast<uint8_t>(classes->of[c])];
}

}  // namespace cairn::codecs
