// SPDX-License-Identifier: Apache-2.0
#pragma once
// The scalar arithmetic of 8-bit floats. E4M3 has a sign, 4 bits of exponent with bias 7, 3 bits of
// mantissa, and no infinity. E5M2 is the high byte of an fp16. This file also computes the scale of
// a token's codes. docs/recipes/fp8.md describes the same in words; codecs/numbers/math.h lists the
// requirements on compilers.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

inline constexpr float kE4m3Max = 448.0F;
inline constexpr uint32_t kE4m3MaxBits = 0x43E00000;  // bits of that float
inline constexpr uint8_t kE4m3MaxCode = 0x7E;

CAIRN_HD bool IsE4m3Nan(uint8_t code) { return (code & 0x7F) == 0x7F; }

// Rounds to nearest, ties to even. NaN, and magnitudes above kE4m3Max, become the largest code of
// the same sign.
CAIRN_HD uint8_t FloatToE4m3(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 24) & 0x80;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude >= kE4m3MaxBits) return static_cast<uint8_t>(sign | kE4m3MaxCode);
  const Truncated cut = TruncateMagnitude(magnitude, 20, 121);
  return static_cast<uint8_t>(sign | (cut.value + (IsNearerUp(cut) ? 1 : 0)));
}

CAIRN_HD float E4m3ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t exponent = (code >> 3) & 0xF;
  const uint32_t mantissa = code & 7;
  if (IsE4m3Nan(code)) return BitsFloat(sign | 0x7FC00000);
  if (exponent != 0) return BitsFloat(sign | ((exponent + 120) << 23) | (mantissa << 20));
  // mantissa * 2^-9 is exact, because both factors and the product are.
  return BitsFloat(sign | FloatBits(static_cast<float>(mantissa) * 0.001953125F));
}

inline constexpr uint32_t kE5m2MaxBits = 0x47600000;  // bits of 57344, the largest finite E5M2
inline constexpr uint8_t kE5m2MaxCode = 0x7B;

// Rounds as FloatToE4m3() does. NaN, and magnitudes above the largest finite number, become the
// largest finite number of the same sign.
CAIRN_HD uint8_t FloatToE5m2(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 24) & 0x80;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude >= kE5m2MaxBits) return static_cast<uint8_t>(sign | kE5m2MaxCode);
  const Truncated cut = TruncateMagnitude(magnitude, 21, 113);
  return static_cast<uint8_t>(sign | (cut.value + (IsNearerUp(cut) ? 1 : 0)));
}

CAIRN_HD float E5m2ToFloat(uint8_t code) { return Fp16ToFloat(static_cast<uint16_t>(code << 8)); }

// Returns the fp16 bits of the scale with which no code exceeds kE4m3Max, except by rounding.
// REQUIRES: 0 <= largest <= kMagnitudeMax.
CAIRN_HD uint16_t Fp8Scale(float largest) { return Fp16RoundUp(Divide(largest, kE4m3Max)); }

// Returns the factor by which values are multiplied before coding; 0 if the scale is 0.
CAIRN_HD float Fp8Inverse(float scale) { return scale > 0.0F ? Divide(1.0F, scale) : 0.0F; }

}  // namespace cairn::codecs
