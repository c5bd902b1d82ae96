// SPDX-License-Identifier: Apache-2.0
#include "codecs/numbers/fp8.h"
#include "codecs/backend/reference/reference.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs::reference {
namespace {

float LargestOf(const AffineTile& tile, const uint8_t* source, uint32_t token) {
  float largest = 0.0F;
  for (uint32_t c = 0; c < tile.dim; ++c) {
    const float value = LoadElement(tile.dtype, source, uint64_t{token} * tile.dim + c);
    const float magnitude = value < 0.0F ? -value : value;
    if (magnitude > largest) largest = magnitude;
  }
  return largest;
}

}  // namespace

void EncodeFp8(const AffineTile& tile, const uint8_t* source, const uint64_t* rows, uint8_t* codes,
               uint8_t* scales) {
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    const bool is_row = IsRow(rows, token);
    const uint16_t scale = is_row ? uint16_t{0} : Fp8Scale(LargestOf(tile, source, token));
    const float inverse = Fp8Inverse(Fp16ToFloat(scale));
    Store(scales + sizeof(uint16_t) * token, scale);
    for (uint32_t c = 0; c < tile.dim; ++c) {
      const uint64_t i = uint64_t{token} * tile.dim + c;
      codes[i] =
          is_row ? uint8_t{0} : FloatToE4m3(Multiply(LoadElement(tile.dtype, source, i), inverse));
    }
  }
}

void DecodeFp8(const AffineTile& tile, const uint8_t* codes, const uint8_t* scales,
               uint8_t* target) {
  float value_of[256];
  for (uint32_t code = 0; code < 256; ++code) {
    value_of[code] = E4m3ToFloat(static_cast<uint8_t>(code));
  }
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    const float scale = Fp16ToFloat(Load<uint16_t>(scales + sizeof(uint16_t) * token));
    for (uint32_t c = 0; c < tile.dim; ++c) {
      const uint64_t i = uint64_t{token} * tile.dim + c;
      StoreElement(tile.dtype, target, i, Multiply(value_of[codes[i]], scale));
    }
  }
}

}  // namespace cairn::codecs::reference
