// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "codecs/backend/reference/reference.h"
#include "codecs/numbers/affine.h"
#include "codecs/pack/dense.h"

namespace cairn::codecs::reference {
namespace {

// Channels [first, end) of one token, whose codes share params.
struct Run {
  uint32_t token = 0;
  uint32_t first = 0;
  uint32_t end = 0;
};

void DecodeRun(const AffineTile& tile, const uint8_t* codes, AffineParams params, const Run& run,
               uint8_t* target) {
  const uint8_t* pattern =
      tile.prediction == nullptr ? nullptr : tile.prediction->PatternOf(run.token, tile.dim);
  const uint8_t* row = codes + uint64_t{run.token} * CodeRowBytes(tile.dim, tile.bits);
  const float min = Fp16ToFloat(params.min), range = Fp16ToFloat(params.range);
  for (uint32_t channel = run.first; channel < run.end; ++channel) {
    float value = AffineValue(UnpackCode(row, channel, tile.bits), min, range, tile.bits);
    if (pattern != nullptr) value = Add(value, LoadPatternValue(pattern, channel));
    StoreElement(tile.dtype, target, uint64_t{run.token} * tile.dim + channel, value);
  }
}

}  // namespace

void DecodePerChannel(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                      uint8_t* target) {
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    for (uint32_t channel = 0; channel < tile.dim; ++channel) {
      const uint64_t pair = uint64_t{token / tile.group} * tile.dim + channel;
      DecodeRun(tile, codes, LoadParams(params, pair), {token, channel, channel + 1}, target);
    }
  }
}

void DecodePerToken(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                    uint8_t* target) {
  uint64_t pair = 0;
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    for (uint32_t first = 0; first < tile.dim; first += tile.group) {
      const uint32_t end = tile.dim - first < tile.group ? tile.dim : first + tile.group;
      DecodeRun(tile, codes, LoadParams(params, pair++), {token, first, end}, target);
    }
  }
}

void CopyStreamed(const uint8_t* source, uint64_t bytes, uint8_t* target) {
  std::memcpy(target, source, bytes);
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
