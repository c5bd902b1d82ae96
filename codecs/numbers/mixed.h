// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rule by which the recipe `mixkvq` sorts the channels of K into classes. It uses the salience
// of a channel (MixKVQ, equations of section 4.2: A = I * S), and the thresholds that the paper
// publishes. docs/recipes/mixkvq.md describes the same in words; codecs/numbers/math.h lists the
// requirements on compilers.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

// The precision of a channel's codes. Values are part of the image format.
enum class ChannelClass : uint8_t { kTwoBits = 0, kFourBits = 1, kSourceBits = 2 };
inline constexpr uint32_t kChannelClasses = 3;

// Recipe::variant of mixkvq. kBudget gives 4 bits to a quarter of the channels. The other variants
// use the thresholds published for a model.
enum class MixedVariant : uint8_t {
  kBudget = 0,
  kLlama8b = 1,
  kQwen7b = 2,
  kQwen14b = 3,
  kQwen32b = 4
};
inline constexpr uint32_t kMixedVariants = 5;

// Group sizes in the published configurations, both for tokens of K and for channels of V.
inline constexpr uint16_t kMixedPaperGroup = 32;

struct MixedThresholds {
  float source_bits;  // channels with a larger salience keep source bits
  float four_bits;    // other channels with a larger salience get four bits
};

// REQUIRES: variant is not kBudget.
CAIRN_HD MixedThresholds ThresholdsOf(MixedVariant variant) {
  switch (variant) {
    case MixedVariant::kQwen7b:
      return {0.63F, 0.41F};
    case MixedVariant::kQwen14b:
      return {1.52F, 1.60F};
    case MixedVariant::kQwen32b:
      return {1.85F, 1.58F};
    default:
      return {1.44F, 0.79F};
  }
}

// Returns the salience of a channel whose values lie in [low, high]: A = I * S, where S is the step
// of 2-bit codes. A NaN counts as 0.
CAIRN_HD float Salience(float magnitude, float low, float high) {
  const float salience = Multiply(magnitude, Divide(Add(high, -low), 3.0F));
  return salience > 0.0F ? salience : 0.0F;
}

CAIRN_HD ChannelClass ClassAbove(float salience, MixedThresholds thresholds) {
  if (salience > thresholds.source_bits) return ChannelClass::kSourceBits;
  return salience > thresholds.four_bits ? ChannelClass::kFourBits : ChannelClass::kTwoBits;
}

// Returns the number of channels with 4 bits in kBudget.
CAIRN_HD uint32_t FourBitChannels(uint32_t dim) { return dim / 4; }

}  // namespace cairn::codecs
