// SPDX-License-Identifier: Apache-2.0
// encode_fp8 and decode_fp8 of codecs/backend/backend.h, with the primitives of struct Simd.
//
// A code is decoded through fp16, which has the exponents 2^-6 to 2^8 of E4M3 with another bias.
// The scale contains the resulting factor of 2^8.

#include "codecs/backend/reference/reference.h"
#include "codecs/numbers/fp8.h"

namespace cairn::codecs {
namespace {

// Returns the largest magnitude of a token. REQUIRES: no element is NaN.
template <typename Type>
float LargestOf(const uint8_t* elements, uint32_t dim) {
  Int largest = Simd::Zero();
  for (uint32_t at = 0; at < dim * Type::kBytes; at += 4 * kLanes) {
    largest = LargerMagnitude<Type::kBytes>(largest, elements + at);
  }
  if constexpr (Type::kBytes == 2) return Type::ToFloat(Simd::ReduceMaxHalves(largest));
  alignas(64) uint8_t some[4 * kLanes];
  Simd::StoreHalves<false>(some, largest);
  return Simd::ReduceMax(Simd::LoadFp32(some));
}

void EncodeFp8(const AffineTile& tile, const uint8_t* source, const uint64_t* rows, uint8_t* codes,
               uint8_t* scales) {
  if (tile.dim % (2 * kLanes) != 0 || IsFp8(tile.dtype)) {
    reference::EncodeFp8(tile, source, rows, codes, scales);
    return;
  }
  WithType(tile.dtype, [&]<typename Type>(Type) {
    for (uint32_t token = 0; token < tile.tokens; ++token) {
      const uint8_t* elements = source + uint64_t{token} * tile.dim * Type::kBytes;
      uint8_t* token_codes = codes + uint64_t{token} * tile.dim;
      const bool is_row = HasRow(rows, token);
      const uint16_t scale = is_row ? 0 : Fp8Scale(LargestOf<Type>(elements, tile.dim));
      __builtin_memcpy(scales + uint64_t{2} * token, &scale, 2);
      if (is_row) {
        __builtin_memset(token_codes, 0, tile.dim);
        continue;
      }
      const Float inverse = Simd::Set(Fp8Inverse(Simd::FromFp16(scale)));
      for (uint32_t c = 0; c < tile.dim; c += kLanes) {
        const Float value = Type::Load(elements + uint64_t{c} * Type::kBytes);
        Simd::StoreCodes8(token_codes + c, Simd::ToE4m3(Simd::Mul(value, inverse)));
      }
    }
  });
}

template <typename Type, bool kStreams>
void DecodeTokensFp8(const AffineTile& tile, const uint8_t* codes, const uint8_t* scales,
                     uint8_t* target) {
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    const Float scale = Simd::Set(Multiply(HalfAt(scales, token), 256.0F));
    for (uint32_t c = 0; c < tile.dim; c += 2 * kLanes, codes += 2 * kLanes) {
      Float first;
      Float second;
      Simd::LoadE4m3(codes, &first, &second);
      Type::template StoreTwo<kStreams>(target, Simd::Mul(first, scale), Simd::Mul(second, scale));
      target += uint64_t{2} * kLanes * Type::kBytes;
    }
  }
}

void DecodeFp8(const AffineTile& tile, const uint8_t* codes, const uint8_t* scales,
               uint8_t* target) {
  const bool is_finite = !HasAbove<1>(codes, uint64_t{tile.tokens} * tile.dim, kE4m3MaxCode) &&
                         !HasAbove<2>(scales, uint64_t{2} * tile.tokens, 0x7BFF);
  if (tile.dim % (2 * kLanes) != 0 || !is_finite || IsFp8(tile.dtype)) {
    reference::DecodeFp8(tile, codes, scales, target);
    return;
  }
  WithType(tile.dtype, [&]<typename Type>(Type) {
    if (tile.is_streamed && HasLines(tile.dim * Type::kBytes, target)) {
      DecodeTokensFp8<Type, true>(tile, codes, scales, target);
      Simd::EndStreams();
    } else {
      DecodeTokensFp8<Type, false>(tile, codes, scales, target);
    }
  });
}

}  // namespace
}  // namespace cairn::codecs
