// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "codecs/pack/dense.h"
#include "codecs/reference/reference.h"

namespace cairn::codecs::reference {
namespace {

void DecodeElement(const AffineTile& tile, const uint8_t* codes, AffineParams params,
                   uint32_t token, uint32_t channel, uint8_t* target) {
  const uint8_t* row = codes + uint64_t{token} * CodeRowBytes(tile.dim, tile.bits);
  const float step = Step(tile.bits, Fp16ToFloat(params.range));
  const float value =
      Dequantize(UnpackCode(row, channel, tile.bits), step, Fp16ToFloat(params.min));
  StoreElement(tile.dtype, target, uint64_t{token} * tile.dim + channel, value);
}

}  // namespace

void DecodePerChannel(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                      uint8_t* target) {
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    for (uint32_t channel = 0; channel < tile.dim; ++channel) {
      const uint64_t pair = uint64_t{token / tile.group} * tile.dim + channel;
      DecodeElement(tile, codes, LoadParams(params, pair), token, channel, target);
    }
  }
}

void DecodePerToken(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                    uint8_t* target) {
  const uint32_t group_count = (tile.dim + tile.group - 1) / tile.group;
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    for (uint32_t channel = 0; channel < tile.dim; ++channel) {
      const uint64_t pair = uint64_t{token} * group_count + channel / tile.group;
      DecodeElement(tile, codes, LoadParams(params, pair), token, channel, target);
    }
  }
}

void NarrowCodes(const AffineTile& tile, uint8_t target_bits, const uint8_t* codes,
                 uint8_t* target) {
  const uint32_t source_row_bytes = CodeRowBytes(tile.dim, tile.bits);
  const uint32_t target_row_bytes = CodeRowBytes(tile.dim, target_bits);
  std::memset(target, 0, uint64_t{tile.tokens} * target_row_bytes);
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    for (uint32_t channel = 0; channel < tile.dim; ++channel) {
      uint8_t code = UnpackCode(codes + uint64_t{token} * source_row_bytes, channel, tile.bits);
      if (tile.bits == 8) {
        code = Narrow(code, target_bits);
      } else if (target_bits == 2) {
        code = Narrow4To2(code);
      }
      PackCode(target + uint64_t{token} * target_row_bytes, channel, target_bits, code);
    }
  }
}

}  // namespace cairn::codecs::reference
