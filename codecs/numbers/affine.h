// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arithmetic of codes with a (min, range): the params of a group, the code of a value, and the
// value of a code. docs/recipes/kivi.md describes the same in words; codecs/numbers/math.h lists
// the requirements on compilers. The reference loops and the kernels for tiles of any shape both
// use this file.
//
// Thread-safety: pure functions. Free of the standard library, so that hosts and devices can use
// them.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

// The smallest and the largest value of a group; 0 and 0 if the group is empty.
struct Extremes {
  float low = 0.0F, high = 0.0F;
  bool is_empty = true;

  CAIRN_HD_MEMBER void Add(float value) {
    if (is_empty || value < low) low = value;
    if (is_empty || value > high) high = value;
    is_empty = false;
  }
  CAIRN_HD_MEMBER void MakeZerosPositive() {
    low = codecs::Add(low, 0.0F);
    high = codecs::Add(high, 0.0F);
  }
};

// Returns the squared error of a group's codes, by which a clipped range is chosen.
//   for_each(visit)  calls visit(value) for every value of the group
CAIRN_HD_CALLBACKS
template <typename ForEach>
CAIRN_HD uint32_t ClipError(uint32_t bits, AffineParams params, float covering_range,
                            ForEach for_each) {
  const float min = Fp16ToFloat(params.min), range = Fp16ToFloat(params.range);
  const float inverse_step = InverseStep(bits, range);
  const float weight = ClipWeight(bits, range, covering_range);
  uint32_t error = 0;
  for_each([&](float value) {
    const int32_t distance = ClipDistance(value, min, inverse_step, Levels(bits), weight);
    error += static_cast<uint32_t>(distance * distance);
  });
  return error;
}

// Returns the params of a group. Without clipping they cover all its values. With clipping, tries
// clip_count ranges, and returns the first with the least error.
//   of          extremes of the group; a zero must be +0
//   clip_count  1: ranges are not clipped; else ClipCount()
CAIRN_HD_CALLBACKS
template <typename ForEach>
CAIRN_HD AffineParams ChooseParams(uint32_t bits, uint32_t clip_count, const Extremes& of,
                                   ForEach for_each) {
  const AffineParams covering = MakeParams(of.low, of.high, 0.0F);
  if (clip_count == 1) return covering;
  const float covering_range = Fp16ToFloat(covering.range);
  AffineParams best = covering;
  uint32_t best_error = 0;
  CAIRN_HD_NO_UNROLL
  for (uint32_t i = 0; i < clip_count; ++i) {
    const AffineParams params = MakeParams(of.low, of.high, ClipInset(bits, i));
    const uint32_t error = ClipError(bits, params, covering_range, for_each);
    if (i != 0 && error >= best_error) continue;
    best = params;
    best_error = error;
  }
  return best;
}

CAIRN_HD uint8_t AffineCode(float value, AffineParams params, uint32_t bits) {
  const float inverse_step = InverseStep(8, Fp16ToFloat(params.range));
  return Narrow(Code8(value, Fp16ToFloat(params.min), inverse_step), bits);
}

// Returns the value of a code in a group with this min and range.
CAIRN_HD float AffineValue(uint8_t code, float min, float range, uint32_t bits) {
  return Dequantize(code, Step(bits, range), min);
}

}  // namespace cairn::codecs
