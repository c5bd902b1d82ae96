// SPDX-License-Identifier: Apache-2.0
#pragma once
// The scalar arithmetic of the recipe `cairn-hot`: fixed-rate levels, the width of a channel's
// codes, and the scale of a strip. docs/recipes/cairn-hot.md describes the same in words;
// codecs/numbers/math.h lists the requirements on compilers.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/numbers/static_step.h"

namespace cairn::codecs {

inline constexpr uint32_t kHotWidthMax = 6;
inline constexpr int32_t kHotCorrectionMin = -8;
inline constexpr int32_t kHotCorrectionMax = 7;

// The positive levels with the least squared error for values of variance 1. The levels of w bits
// start at index 2^(w-1) - 1.
CAIRN_TABLE float kHotLevels[63] = {
    0.797885F,                                                                              // 1 bit
    0.45278F,  1.510418F,                                                                   // 2
    0.245094F, 0.756005F, 1.343909F, 2.151946F,                                             // 3
    0.128395F, 0.388048F, 0.656759F, 0.94234F,  1.256231F, 1.618046F, 2.069017F, 2.73259F,  // 4
    0.06589F,  0.198052F, 0.331378F, 0.4667F,   0.604934F, 0.747136F, 0.894565F, 1.048783F,  // 5
    1.211804F, 1.38634F,  1.576228F, 1.787233F, 2.028728F, 2.317739F, 2.69112F,  3.260732F,
    0.03341F,  0.100278F, 0.167297F, 0.234567F, 0.302193F, 0.370283F, 0.43895F,  0.508314F,  // 6
    0.578503F, 0.649656F, 0.721922F, 0.795468F, 0.870477F, 0.947155F, 1.025736F, 1.106488F,
    1.18972F,  1.275794F, 1.365141F, 1.458276F, 1.555831F, 1.658589F, 1.767542F, 1.883977F,
    2.009611F, 2.14681F,  2.298981F, 2.471305F, 2.672274F, 2.917407F, 3.240437F, 3.744101F,
};

// The worth at which a channel gets its w-th bit, in 1/256 octave.
CAIRN_TABLE int32_t kHotThresholds[kHotWidthMax] = {83, 259, 460, 681, 916, 1161};

CAIRN_HD uint32_t HotWidth(int32_t worth) {
  uint32_t width = 0;
  while (width < kHotWidthMax && kHotThresholds[width] <= worth) ++width;
  return width;
}

// REQUIRES: 1 <= width <= kHotWidthMax.
CAIRN_HD constexpr const float* HotLevelsOf(uint32_t width) {
  return kHotLevels + (1U << (width - 1)) - 1;
}

CAIRN_HD uint32_t HotCode(float value, uint32_t width) {
  const float* levels = HotLevelsOf(width);
  const uint32_t half = 1U << (width - 1);
  const bool is_negative = value < 0.0F;
  const float magnitude = is_negative ? -value : value;
  uint32_t above = 0;
  while (above + 1 < half && Multiply(Add(levels[above], levels[above + 1]), 0.5F) <= magnitude) {
    ++above;
  }
  return is_negative ? half - 1 - above : half + above;
}

// REQUIRES: code < 2^width.
CAIRN_HD constexpr float HotLevel(uint32_t code, uint32_t width) {
  const float* levels = HotLevelsOf(width);
  const uint32_t half = 1U << (width - 1);
  return code >= half ? levels[code - half] : -levels[half - 1 - code];
}

// Returns the correction of a channel, in quarter octaves. `power` is the mean square of the
// channel in a strip, divided by the square of the channel's spread.
CAIRN_HD int32_t HotCorrection(float power) {
  int32_t correction = kHotCorrectionMin;
  for (int32_t i = kHotCorrectionMin + 1; i <= kHotCorrectionMax; ++i) {
    correction += power >= Exp2(128 * i - 64) ? 1 : 0;
  }
  return correction;
}

// Stores a number of `width` bits from bit `offset` of the target on, where bit 0 is the lowest bit
// of the first byte. REQUIRES: these bits are 0.
CAIRN_HD void StoreHotBits(uint8_t* target, uint32_t offset, uint32_t width, uint32_t value) {
  for (uint32_t i = 0; i < width; ++i, ++offset) {
    target[offset / 8] =
        static_cast<uint8_t>(target[offset / 8] | ((value >> i) & 1) << (offset % 8));
  }
}

// A code ends at most one byte after the byte in which it starts.
CAIRN_HD uint32_t LoadHotBits(const uint8_t* source, uint32_t offset, uint32_t width) {
  uint32_t value = source[offset / 8];
  if (offset % 8 + width > 8) value |= static_cast<uint32_t>(source[offset / 8 + 1]) << 8;
  return (value >> (offset % 8)) & ((1U << width) - 1);
}

// Returns 256 * log2 of the scale by which a channel's levels are multiplied.
CAIRN_HD int32_t HotScaleLog(int32_t spread_log, int32_t correction) {
  return spread_log + 64 * correction;
}

// ---- Values of a channel, before the mean is added ----

// Returns the factor that converts values to units of their levels. Without a correction, one unit
// is the channel's spread.
CAIRN_HD float HotInverseScale(int32_t spread_log, int32_t correction = 0) {
  return Exp2(-HotScaleLog(spread_log, correction));
}

// Returns false if the token must be stored as a row.
//   inverse  here and in HotPower: HotInverseScale() without a correction
CAIRN_HD bool IsHotCodable(float value, float inverse) {
  const float size = Multiply(value, inverse);
  return size >= -kStepCodeMax && size <= kStepCodeMax;
}

// Sums the mean square of a channel's values in a strip. It determines the correction of the
// channel's scale.
struct HotPower {
  float sum = 0.0F;
  uint32_t count = 0;

  CAIRN_HD_MEMBER void Add(float value, float inverse) {
    const float size = Multiply(value, inverse);
    sum = codecs::Add(sum, Multiply(size, size));
    ++count;
  }
  [[nodiscard]] CAIRN_HD_MEMBER int32_t Correction() const {
    return count == 0 ? 0 : HotCorrection(Divide(sum, static_cast<float>(count)));
  }
};

// REQUIRES: 1 <= width <= kHotWidthMax.
CAIRN_HD uint32_t HotCodeOf(float value, float inverse_scale, uint32_t width) {
  return HotCode(Multiply(value, inverse_scale), width);
}
CAIRN_HD float HotValueOf(uint32_t code, float scale, uint32_t width) {
  return Multiply(HotLevel(code, width), scale);
}

}  // namespace cairn::codecs
