// SPDX-License-Identifier: Apache-2.0
#pragma once
// Processes eight elements of a strip at once, in bf16 and fp16. Converts 3-bit codes to one byte
// each. Joins elements from exponents, planes and low bits, and splits them.

#include <cstdint>

#include "codecs/pack/strip.h"
#include "kernels/body/tasks.h"

namespace cairn::kernels {

inline constexpr uint32_t kUnit = 8;  // elements that a lane processes at once
inline constexpr uint32_t kRunUnits = codecs::kRun / kUnit;
inline constexpr uint32_t kHighBits = 0x80808080U;

// Returns the byte offset of a unit's codes among the runs. The codes are three bytes, 8 bytes
// apart.
CAIRN_DEVICE uint32_t UnitOfRuns(uint32_t unit) {
  return unit / kRunUnits * codecs::kRunBytes + unit % kRunUnits;
}

// Returns a - b for each byte, modulo 256.
CAIRN_DEVICE uint32_t SubtractBytes(uint32_t a, uint32_t b) {
  return ((a | kHighBits) - (b & ~kHighBits)) ^ ((a ^ ~b) & kHighBits);
}

// Returns the codes of four elements, one byte each. Bit w of each code is in the lower half of
// byte w of `bits`. The product moves bit i to bit 8 i without a carry.
CAIRN_DEVICE uint32_t SpreadFour(uint32_t bits) {
  const uint32_t lowest = PermuteBytes(bits, 0, 0x4440) * 0x00204081U;
  const uint32_t middle = PermuteBytes(bits, 0, 0x4441) * 0x00408102U;
  const uint32_t highest = PermuteBytes(bits, 0, 0x4442) * 0x00810204U;
  return Choose(0x04040404U, highest, Choose(0x02020202U, middle, lowest)) & 0x07070707U;
}

// Spreads the codes of a unit: byte w has bit w of each code. Byte 3 is ignored.
CAIRN_DEVICE U32x2 SpreadUnit(uint32_t bits) {
  return {SpreadFour(bits & 0x0F0F0F0FU), SpreadFour(bits >> 4 & 0x0F0F0F0FU)};
}

// Joins four elements. Their exponents, planes and, for fp16, low bits are one byte each.
template <codecs::DType kDType>
CAIRN_DEVICE U32x2 JoinFour(uint32_t exponents, uint32_t planes, uint32_t lows) {
  uint32_t high = 0, low = 0;  // the bytes of the elements
  if constexpr (kDType == codecs::DType::kBf16) {
    // The high byte has the sign and the upper 7 bits of the exponent. The low byte has the
    // exponent's lowest bit and the mantissa.
    high = Choose(kHighBits, planes, exponents >> 1);
    low = Choose(kHighBits, exponents << 7, planes);
  } else {
    high = Choose(0x7C7C7C7CU, exponents << 2, Choose(kHighBits, planes, planes >> 5));
    low = Choose(0x07070707U, lows, planes << 3);
  }
  return {PermuteBytes(low, high, 0x5140), PermuteBytes(low, high, 0x7362)};
}

// Returns the exponents of four elements, in the bytes that JoinFour() takes. Each word has two
// elements.
template <codecs::DType kDType>
CAIRN_DEVICE uint32_t ExponentsOfFour(U32x2 bits) {
  constexpr uint32_t kShift = kDType == codecs::DType::kBf16 ? 7 : 10;
  const uint32_t exponents = PermuteBytes(bits.x >> kShift, bits.y >> kShift, 0x6420);
  return kDType == codecs::DType::kBf16 ? exponents : exponents & 0x1F1F1F1FU;
}
template <codecs::DType kDType>
CAIRN_DEVICE uint32_t PlanesOfFour(U32x2 bits) {
  constexpr uint32_t kShift = kDType == codecs::DType::kBf16 ? 0 : 3;
  return Choose(kHighBits, PermuteBytes(bits.x, bits.y, 0x7531),
                PermuteBytes(bits.x >> kShift, bits.y >> kShift, 0x6420));
}
// Returns the low bits of four fp16 elements, in the form that SpreadFour() takes.
CAIRN_DEVICE uint32_t LowsOfFour(U32x2 bits) {
  const uint32_t lows = PermuteBytes(bits.x, bits.y, 0x6420);
  uint32_t of_bits = 0;
  CAIRN_UNROLL
  for (uint32_t w = 0; w < 3; ++w) {  // moves bit 8 i to 24 + i without a carry
    of_bits |= ((lows >> w & 0x01010101U) * 0x01020408U >> 24 & 15) << 8 * w;
  }
  return of_bits;
}

template <codecs::DType kDType>
CAIRN_DEVICE U32x4 JoinUnit(U32x2 exponents, U32x2 planes, U32x2 lows) {
  const U32x2 first = JoinFour<kDType>(exponents.x, planes.x, lows.x);
  const U32x2 second = JoinFour<kDType>(exponents.y, planes.y, lows.y);
  return {first.x, first.y, second.x, second.y};
}

}  // namespace cairn::kernels
