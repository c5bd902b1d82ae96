// SPDX-License-Identifier: Apache-2.0
#include "codecs/stages/stages.h"

#include <bit>

#include "codecs/stages/predict/none.h"
#include "codecs/stages/predict/pattern.h"
#include "codecs/stages/quantize/affine.h"
#include "codecs/stages/select/min_norm.h"
#include "codecs/stages/select/scores.h"
#include "codecs/stages/select/select.h"

namespace cairn::codecs {
namespace {

constexpr Stages kKivi = {SelectNone, kPredictNone, QuantizeAffine};
constexpr Stages kKiviClipped = {SelectSinks, kPredictNone, QuantizeAffine};

constexpr Stages kPatternkv = {SelectNone, PredictMinMax, QuantizePredicted};
constexpr Stages kPatternkvL2 = {SelectNone, PredictNearest, QuantizePredicted};
constexpr Stages kArkv = {SelectProtected, kPredictNone, QuantizeAffine};
constexpr Stages kOtt = {SelectMinNorm, kPredictNone, QuantizeAffine};

}  // namespace

uint32_t TilePlan::RowCount() const {
  uint32_t count = 0;
  for (const uint64_t word : rows) count += static_cast<uint32_t>(std::popcount(word));
  return count;
}

const Stages& StagesOf(const Recipe& recipe) {
  if (recipe.NeedsBank()) return recipe.is_nearest ? kPatternkvL2 : kPatternkv;
  if (recipe.Traits().follows_chain) return kOtt;
  if (recipe.HasScores()) return kArkv;
  return recipe.is_clipped ? kKiviClipped : kKivi;
}

}  // namespace cairn::codecs
