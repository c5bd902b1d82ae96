// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loads and stores elements, params and patterns in memory: little-endian, at any alignment.
//
// Thread-safety: pure functions. Free of the standard library, for hosts and devices.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/pack/eight_bits.h"
#include "codecs/types/dtype.h"

namespace cairn::codecs {

CAIRN_HD uint16_t Load16(const uint8_t* source) {
  return static_cast<uint16_t>(source[0] | source[1] << 8);
}
CAIRN_HD uint32_t Load32(const uint8_t* source) {
  return Load16(source) | static_cast<uint32_t>(Load16(source + 2)) << 16;
}
CAIRN_HD uint64_t Load64(const uint8_t* source) {
  return Load32(source) | static_cast<uint64_t>(Load32(source + 4)) << 32;
}
CAIRN_HD void Store16(uint8_t* target, uint16_t value) {
  target[0] = static_cast<uint8_t>(value);
  target[1] = static_cast<uint8_t>(value >> 8);
}
CAIRN_HD void Store32(uint8_t* target, uint32_t value) {
  Store16(target, static_cast<uint16_t>(value));
  Store16(target + 2, static_cast<uint16_t>(value >> 16));
}

// Loads element `index` of a tile as fp32; StoreElement() rounds it back.
CAIRN_HD float LoadElement(DType dtype, const uint8_t* source, uint64_t index) {
  switch (dtype) {
    case DType::kBf16:
      return Bf16ToFloat(Load16(source + 2 * index));
    case DType::kFp16:
      return Fp16ToFloat(Load16(source + 2 * index));
    case DType::kFp32:
      return BitsFloat(Load32(source + 4 * index));
    case DType::kFp8E4m3:
    case DType::kFp8E5m2:
      return Fp8ToFloat(dtype, source[index]);
    case DType::kBytes:
      break;
  }
  return 0.0F;
}

CAIRN_HD void StoreElement(DType dtype, uint8_t* target, uint64_t index, float value) {
  switch (dtype) {
    case DType::kBf16:
      Store16(target + 2 * index, FloatToBf16(value));
      break;
    case DType::kFp16:
      Store16(target + 2 * index, FloatToFp16(value, Fp16Rounding::kNearestEven));
      break;
    case DType::kFp32:
      Store32(target + 4 * index, FloatBits(value));
      break;
    case DType::kFp8E4m3:
    case DType::kFp8E5m2:
      target[index] = FloatToFp8(dtype, value);
      break;
    case DType::kBytes:
      break;
  }
}

// Loads one channel of a pattern.
CAIRN_HD float LoadPatternValue(const uint8_t* pattern, uint32_t channel) {
  return Fp16ToFloat(Load16(pattern + 2 * static_cast<uint64_t>(channel)));
}

// Loads the stored params of group `group` of a tile.
CAIRN_HD AffineParams LoadParams(const uint8_t* params, uint64_t group) {
  return {Load16(params + 4 * group), Load16(params + 4 * group + 2)};
}
CAIRN_HD void StoreParams(uint8_t* params, uint64_t group, AffineParams pair) {
  Store16(params + 4 * group, pair.min);
  Store16(params + 4 * group + 2, pair.range);
}

// rows: one bit per token, kRowWords words.
CAIRN_HD bool IsRow(const uint64_t* rows, uint32_t token) {
  return ((rows[token / 64] >> (token % 64)) & 1) != 0;
}

}  // namespace cairn::codecs
