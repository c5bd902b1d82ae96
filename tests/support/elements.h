// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes elements of every dtype for tests. Unlike codecs/pack/elements.h, it keeps NaN in dtypes
// that have it.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codecs/pack/elements.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {

// Returns the bits of a value in a dtype.
inline uint32_t BitsOfValue(DType dtype, float value) {
  switch (dtype) {
    case DType::kBf16:
      return FloatToBf16(value);
    case DType::kFp16:
      return FloatToFp16(value, Fp16Rounding::kNearestEven);
    case DType::kFp8E4m3:
      return std::isfinite(value) ? FloatToFp8(dtype, value) : std::signbit(value) ? 0xFF : 0x7F;
    case DType::kFp8E5m2: {
      if (std::isfinite(value)) return FloatToFp8(dtype, value);
      return (std::isnan(value) ? 0x7E : 0x7C) | (std::signbit(value) ? 0x80U : 0U);
    }
    default:
      return FloatBits(value);
  }
}

// Returns the index of the lowest bit of the exponent.
inline uint32_t ExponentShift(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return 23;
    case DType::kFp16:
      return 10;
    case DType::kFp8E4m3:
      return 3;
    case DType::kFp8E5m2:
      return 2;
    default:
      return 7;
  }
}

inline const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
    case DType::kFp32:
      return "fp32";
    case DType::kFp8E4m3:
      return "fp8_e4m3";
    case DType::kFp8E5m2:
      return "fp8_e5m2";
    case DType::kBytes:
      break;
  }
  return "bytes";
}

}  // namespace cairn::codecs
