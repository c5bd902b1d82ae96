// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes E4M3 codes with a scale per token, and rows (tokens stored as source elements). The fast
// kernel has the same structure as the one in affine_decode.h, and the same limits for its tasks.

#include <cstdint>

#include "codecs/numbers/fp8.h"
#include "kernels/body/affine_decode.h"

namespace cairn::kernels {

// Returns the value of a code that is not a NaN. The bits after the sign are put into a float,
// whose exponent is then 120 too small. The product with 2^120 corrects this. It is exact, even for
// denormals.
CAIRN_DEVICE float E4m3Value(uint32_t code) {
  const uint32_t bits = (code & 0x7F) << 20 | (code & 0x80) << 24;
  return codecs::Multiply(codecs::BitsFloat(bits), 1.329227995784916e36F);
}

// Returns whether one of four codes is a NaN. Adding 1 to a magnitude carries into the sign bit
// only for a NaN.
CAIRN_DEVICE bool HasE4m3Nan(uint32_t codes) {
  return (((codes & 0x7F7F7F7FU) + 0x01010101U) & 0x80808080U) != 0;
}

// A scale must be finite and not negative.
CAIRN_DEVICE float LoadScale(const TileTask& task, uint32_t number, Fault* fault) {
  const uint32_t scale = LoadGlobal<uint16_t>(task.source + task.params_at + 2 * number);
  if (scale >= 0x7C00) *fault = Worse(*fault, Fault::kBadTile);
  return HalfToFloat(scale);
}

template <codecs::DType kDType>
CAIRN_DEVICE void DecodeFp8Codes(const TileTask& task, const PlaneRecord& plane,
                                 const AffineShared& shared, Fault* fault) {
  const uint32_t parts = plane.dim / 8, step = kBlockThreads / parts;
  const uint32_t part = ThreadIndex() % parts, first = ThreadIndex() / parts;
  if (first >= step) return;
  for (uint32_t at = first; at < task.token_count; at += step) {
    uint8_t* place = shared.places.of[at];
    if (place == nullptr || IsRowAt(shared.places, at)) continue;
    const float scale = LoadScale(task, task.token_first + at, fault);
    const auto* codes = reinterpret_cast<const uint32_t*>(shared.codes + (at * parts + part) * 8);
    const uint32_t of[2] = {codes[0], codes[1]};
    if (HasE4m3Nan(of[0]) || HasE4m3Nan(of[1])) *fault = Worse(*fault, Fault::kBadTile);
    uint32_t words[4];
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t pair = of[i / 2] >> (16 * (i % 2));
      words[i] = PackPair<kDType>(codecs::Multiply(E4m3Value(pair & 0xFF), scale),
                                  codecs::Multiply(E4m3Value(pair >> 8 & 0xFF), scale));
    }
    StoreGlobal(place + 16 * part, U32x4{words[0], words[1], words[2], words[3]});
  }
}

template <codecs::DType kDType>
CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 5) DecodeFp8(DecodeArgs args) {
  CAIRN_SHARED(AffineShared, shared);
  DecodeTasks(
      args, &shared.places,
      [&](TileTask& task, const PlaneRecord& plane, Fault*) {
        AskForCodes(task, plane.dim, shared.codes);
      },
      [&](const TileTask& task, const PlaneRecord& plane, Fault* fault) {
        DecodeFp8Codes<kDType>(task, plane, shared, fault);
      });
}

inline constexpr uint32_t kNoCodes = 0xFFFFFFFF;

//   number_of(token) returns the index of the token's codes and scale in the tile; kNoCodes: the
//                    token becomes zeros
template <typename NumberOf>
CAIRN_DEVICE void DecodeFp8Elements(const TileTask& task, const PlaneRecord& plane,
                                    const TokenPlaces& places, NumberOf number_of, Fault* fault) {
  for (uint32_t i = ThreadIndex(); i < task.token_count * plane.dim; i += kBlockThreads) {
    const uint32_t at = i / plane.dim, channel = i % plane.dim;
    if (places.of[at] == nullptr || IsRowAt(places, at)) continue;
    const uint32_t number = number_of(task.token_first + at);
    float value = 0.0F;
    if (number != kNoCodes) {
      const uint8_t code =
          LoadGlobal<uint8_t>(task.source + static_cast<uint64_t>(number) * plane.dim + channel);
      if (codecs::IsE4m3Nan(code)) *fault = Worse(*fault, Fault::kBadTile);
      value = codecs::Multiply(E4m3Value(code), LoadScale(task, number, fault));
    }
    StoreValue(plane.dtype, places.of[at], channel, value);
  }
}

using Fp8DecodeShared = TokenPlaces;

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) DecodeFp8Any(DecodeArgs args) {
  DecodeTasks(args, [](const TileTask& task, const PlaneRecord& plane, const TokenPlaces& places,
                       Fault* fault) {
    const auto number_of = [](uint32_t token) { return token; };
    DecodeFp8Elements(task, plane, places, number_of, fault);
  });
}

}  // namespace cairn::kernels
