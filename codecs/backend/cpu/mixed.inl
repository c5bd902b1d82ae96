// SPDX-License-Identifier: Apache-2.0
// decode_mixed of codecs/backend/backend.h, with the primitives of struct Simd and struct Spreads.
// It converts the codes of a token, of any width, to bytes in the order of its channels, and then
// to values like 8-bit codes with a step for each channel. A token is decoded in the first-level
// cache, its source bits are written over it, and then it is stored.

#include "codecs/numbers/mixed.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kMixedDimMax = 4096;
constexpr uint32_t kMixedWordBytes = 8;  // bytes that are read for up to eight codes

// Eight channels: the start of their codes of a width in a token's codes, and the bits that these
// become in a word of eight bytes.
struct MixedEight {
  uint64_t mask;
  uint32_t bit;
};

struct MixedDecoding {
  const MixedTile& tile;
  uint32_t counts[kChannelClasses] = {};
  uint32_t padded;  // channels, padded to fill registers
  MixedEight four[kMixedDimMax / 8];
  MixedEight two[kMixedDimMax / 8];
  uint16_t source[kMixedDimMax];  // channels of source bits
  uint16_t pair[kMixedDimMax];    // in a group; unspecified for channels of source bits
  alignas(64) float levels[kMixedDimMax];
  alignas(64) float mins[kMixedDimMax];
  alignas(64) float steps[kMixedDimMax];
  alignas(64) uint8_t codes[kMixedDimMax];
  alignas(64) uint8_t elements[kMixedDimMax * sizeof(float)];

  explicit MixedDecoding(const MixedTile& of) : tile(of) {
    padded = (of.dim + 2 * kLanes - 1) / (2 * kLanes) * (2 * kLanes);
    for (uint32_t c = 0; c < padded; ++c) {
      const uint32_t shift = 8 * (c % 8);
      MixedEight& of_four = four[c / 8];
      MixedEight& of_two = two[c / 8];
      if (shift == 0) {
        of_four = {0, 4 * CountOf(ChannelClass::kFourBits)};
        of_two = {0, 2 * CountOf(ChannelClass::kTwoBits)};
      }
      mins[c] = steps[c] = 0.0F;
      levels[c] = 1.0F;
      if (c >= of.dim) continue;
      const ChannelClass kind = of.classes[c];
      const uint32_t index = counts[static_cast<uint8_t>(kind)]++;
      if (kind == ChannelClass::kSourceBits) {
        source[index] = static_cast<uint16_t>(c);
      } else {
        const bool is_four = kind == ChannelClass::kFourBits;
        (is_four ? of_four : of_two).mask |= uint64_t{is_four ? 15U : 3U} << shift;
        pair[c] = static_cast<uint16_t>(index);
        levels[c] = Levels(is_four ? 4 : 2);
      }
    }
  }

  [[nodiscard]] uint32_t CountOf(ChannelClass kind) const {
    return counts[static_cast<uint8_t>(kind)];
  }
  [[nodiscard]] uint32_t Pairs() const {
    return CountOf(ChannelClass::kFourBits) + CountOf(ChannelClass::kTwoBits);
  }

  void TakeParams(uint32_t group) {
    const uint8_t* params = tile.params + uint64_t{4} * group * Pairs();
    for (uint32_t c = 0; c < tile.dim; ++c) {
      const ChannelClass kind = tile.classes[c];
      if (kind == ChannelClass::kSourceBits) continue;
      const uint32_t before =
          kind == ChannelClass::kFourBits ? 0 : CountOf(ChannelClass::kFourBits);
      const uint32_t at = 2 * (before + pair[c]);
      mins[c] = HalfAt(params, at);
      steps[c] = HalfAt(params, at + 1);
    }
    for (uint32_t c = 0; c < padded; c += kLanes) {
      const Float range = Simd::LoadFp32(Bytes(steps + c));
      Simd::StoreFp32(Bytes(steps + c), Simd::Div(range, Simd::LoadFp32(Bytes(levels + c))));
    }
  }

  // A token's codes of a width, with room for reads after them.
  struct Row {
    uint8_t copy[kMixedDimMax / 2 + kMixedWordBytes];

    const uint8_t* At(const uint8_t* part, uint32_t bytes, uint32_t token, uint32_t tokens) {
      const uint8_t* row = part + uint64_t{token} * bytes;
      if (uint64_t{tokens - token - 1} * bytes >= kMixedWordBytes) return row;
      __builtin_memcpy(copy, row, bytes);
      __builtin_memset(copy + bytes, 0, kMixedWordBytes);
      return copy;
    }
  };
  static uint64_t DealEight(const uint8_t* row, const MixedEight& eight) {
    uint64_t bits = 0;
    __builtin_memcpy(&bits, row + eight.bit / 8, kMixedWordBytes);
    return Spreads::Deal(bits >> (eight.bit % 8), eight.mask);
  }

  void TakeCodes(uint32_t token) {
    Row of_four;
    Row of_two;
    const uint32_t four_bytes = (CountOf(ChannelClass::kFourBits) + 1) / 2;
    const uint32_t two_bytes = (CountOf(ChannelClass::kTwoBits) + 3) / 4;
    const uint8_t* four_row = of_four.At(tile.four_bits, four_bytes, token, tile.tokens);
    const uint8_t* two_row = of_two.At(tile.two_bits, two_bytes, token, tile.tokens);
    for (uint32_t i = 0; i < padded / 8; ++i) {
      const uint64_t eight = DealEight(four_row, four[i]) | DealEight(two_row, two[i]);
      __builtin_memcpy(codes + uint64_t{8} * i, &eight, 8);
    }
  }

  template <typename Type>
  void TakeElements(uint32_t token) {
    for (uint32_t c = 0; c < padded; c += 2 * kLanes) {
      Float values[2];
      for (uint32_t v = 0; v < 2; ++v) {
        const uint32_t at = c + v * kLanes;
        const Float step = Simd::LoadFp32(Bytes(steps + at));
        const Float min = Simd::LoadFp32(Bytes(mins + at));
        values[v] = Simd::Add(Simd::Mul(Simd::LoadCodes8(codes + at), step), min);
      }
      Type::template StoreTwo<false>(elements + uint64_t{c} * Type::kBytes, values[0], values[1]);
    }
    const uint32_t count = CountOf(ChannelClass::kSourceBits);
    const uint8_t* bits = tile.source_bits + uint64_t{token} * count * Type::kBytes;
    for (uint32_t i = 0; i < count; ++i) {
      __builtin_memcpy(elements + uint64_t{source[i]} * Type::kBytes, bits + i * Type::kBytes,
                       Type::kBytes);
    }
  }

  template <typename Type, bool kStreams>
  void Decode(uint8_t* target) {
    const uint32_t row_bytes = tile.dim * Type::kBytes;
    for (uint32_t token = 0; token < tile.tokens; ++token, target += row_bytes) {
      if (token % tile.group == 0) TakeParams(token / tile.group);
      TakeCodes(token);
      TakeElements<Type>(token);
      if constexpr (kStreams) {
        for (uint32_t at = 0; at < row_bytes; at += 4 * kLanes) {
          Simd::StoreHalves<true>(target + at, Simd::LoadHalves(elements + at));
        }
      } else {
        __builtin_memcpy(target, elements, row_bytes);
      }
    }
  }
};

void DecodeMixed(const MixedTile& tile, uint8_t* target) {
  MixedDecoding decoding(tile);
  const uint32_t groups = (tile.tokens + tile.group - 1) / tile.group;
  const uint64_t pairs = uint64_t{groups} * decoding.Pairs();
  if (IsFp8(tile.dtype) || (pairs != 0 && HasNonFinite(tile.params, pairs))) {
    reference::DecodeMixed(tile, target);
    return;
  }
  WithType(tile.dtype, [&]<typename Type>(Type) {
    if (tile.is_streamed && HasLines(tile.dim * Type::kBytes, target)) {
      decoding.Decode<Type, true>(target);
      Simd::EndStreams();
    } else {
      decoding.Decode<Type, false>(target);
    }
  });
}

}  // namespace
}  // namespace cairn::codecs
