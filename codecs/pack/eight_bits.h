// SPDX-License-Identifier: Apache-2.0
#pragma once
// Elements of 8 bits: the floats of engines' 8-bit caches. Their values are in units of the
// engine's scales.
//
// Thread-safety: pure functions. Free of the standard library, so that hosts and devices can use
// them.

#include <cstdint>

#include "codecs/numbers/fp8.h"
#include "codecs/numbers/math.h"
#include "codecs/types/dtype.h"

namespace cairn::codecs {

CAIRN_HD bool IsFp8(DType dtype) { return dtype == DType::kFp8E4m3 || dtype == DType::kFp8E5m2; }

CAIRN_HD float Fp8ToFloat(DType dtype, uint8_t bits) {
  return dtype == DType::kFp8E4m3 ? E4m3ToFloat(bits) : E5m2ToFloat(bits);
}

// Rounds to bf16 first, so that the result is the value in a tile of bf16, rounded to 8 bits.
CAIRN_HD uint8_t FloatToFp8(DType dtype, float value) {
  const float rounded = Bf16ToFloat(FloatToBf16(value));
  return dtype == DType::kFp8E4m3 ? FloatToE4m3(rounded) : FloatToE5m2(rounded);
}

}  // namespace cairn::codecs
