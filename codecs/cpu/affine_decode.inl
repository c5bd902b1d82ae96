// SPDX-License-Identifier: Apache-2.0
// decode_per_channel, decode_per_token and narrow_codes of codecs/backend.h in the words of struct
// Simd.
//
// Two-bit codes of 16-bit elements are not computed with: a group has four values, so they are made
// once and picked. Everything else is one multiply, one add and one rounding an element.

namespace cairn::codecs {
namespace {

// Columns that K is decoded in at a time, so that what is made once a group stays in the
// first-level cache.
constexpr uint32_t kPanel = 256;

template <uint32_t kBits>
Float LoadCodes(const uint8_t* source) {
  if constexpr (kBits == 8) return Simd::LoadCodes8(source);
  if constexpr (kBits == 4) return Simd::LoadCodes4(source);
  return Simd::LoadCodes2(source);
}

// A min or range that is not finite decodes to what is not finite, NaN among it: left to the plain
// loops, since the roundings here take no NaN.
bool HasNonFinite(const uint8_t* params, uint64_t pairs) {
  uint32_t seen = 0;
  for (uint64_t i = 0; i < pairs; ++i) {
    uint16_t pair[2];
    __builtin_memcpy(pair, params + 4 * i, 4);
    seen |= static_cast<uint32_t>((pair[0] & 0x7C00) == 0x7C00);
    seen |= static_cast<uint32_t>((pair[1] & 0x7C00) == 0x7C00);
  }
  return seen != 0;
}

struct Panel {
  uint32_t token_first, token_count;
  uint32_t channel_first, channel_count;
};

template <typename Type, uint32_t kBits>
void DecodePanel(const AffineTile& tile, const Panel& panel, const uint8_t* codes,
                 const uint8_t* params, uint8_t* target) {
  alignas(64) float mins[kPanel];
  alignas(64) float steps[kPanel];
  for (uint32_t c = 0; c < panel.channel_count; c += kLanes) {
    Float min;
    Float range;
    Simd::LoadPairs(params + uint64_t{4} * c, &min, &range);
    Simd::StoreFp32(reinterpret_cast<uint8_t*>(mins + c), min);
    Simd::StoreFp32(reinterpret_cast<uint8_t*>(steps + c),
                    Simd::Div(range, Simd::Set(Levels(kBits))));
  }
  const uint64_t row_bytes = uint64_t{tile.dim} * kBits / 8;
  for (uint32_t t = panel.token_first; t < panel.token_first + panel.token_count; ++t) {
    const uint8_t* row = codes + t * row_bytes + panel.channel_first * kBits / 8;
    uint8_t* out = target + (uint64_t{t} * tile.dim + panel.channel_first) * Type::kBytes;
    for (uint32_t c = 0; c < panel.channel_count; c += kLanes) {
      const Float code = LoadCodes<kBits>(row + c * kBits / 8);
      const Float step = Simd::LoadFp32(reinterpret_cast<const uint8_t*>(steps + c));
      const Float min = Simd::LoadFp32(reinterpret_cast<const uint8_t*>(mins + c));
      Type::Store(out + c * Type::kBytes, Simd::Add(Simd::Mul(code, step), min));
    }
  }
}

template <typename Type>
void PickPanel(const AffineTile& tile, const Panel& panel, const uint8_t* codes,
               const uint8_t* params, uint8_t* target) {
  alignas(64) uint8_t values[4][2 * kPanel];
  for (uint32_t c = 0; c < panel.channel_count; c += kLanes) {
    Float min;
    Float range;
    Simd::LoadPairs(params + uint64_t{4} * c, &min, &range);
    const Float step = Simd::Div(range, Simd::Set(Levels(2)));
    for (uint32_t code = 0; code < 4; ++code) {
      const Float value = Simd::Add(Simd::Mul(Simd::Set(static_cast<float>(code)), step), min);
      Type::Store(values[code] + 2 * c, value);
    }
  }
  const uint64_t row_bytes = uint64_t{tile.dim} / 4;
  for (uint32_t c = 0; c < panel.channel_count; c += 2 * kLanes) {
    const Simd::Halves of[4] = {
        Simd::LoadHalves(values[0] + 2 * c), Simd::LoadHalves(values[1] + 2 * c),
        Simd::LoadHalves(values[2] + 2 * c), Simd::LoadHalves(values[3] + 2 * c)};
    const uint32_t channel = panel.channel_first + c;
    for (uint32_t t = panel.token_first; t < panel.token_first + panel.token_count; ++t) {
      Simd::StorePicked(target + (uint64_t{t} * tile.dim + channel) * 2,
                        codes + t * row_bytes + channel / 4, of);
    }
  }
}

template <typename Type, uint32_t kBits>
void DecodeChannels(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                    uint8_t* target) {
  constexpr bool kPicks = kBits == 2 && Type::kBytes == 2;
  for (uint32_t first = 0; first < tile.tokens; first += tile.group) {
    const uint32_t count = tile.tokens - first < tile.group ? tile.tokens - first : tile.group;
    for (uint32_t channel = 0; channel < tile.dim; channel += kPanel) {
      const uint32_t channels = tile.dim - channel < kPanel ? tile.dim - channel : kPanel;
      const Panel panel{first, count, channel, channels};
      const uint8_t* pairs = params + (uint64_t{first / tile.group} * tile.dim + channel) * 4;
      if (kPicks && tile.dim % (2 * kLanes) == 0) {
        if constexpr (kPicks) PickPanel<Type>(tile, panel, codes, pairs, target);
      } else {
        DecodePanel<Type, kBits>(tile, panel, codes, pairs, target);
      }
    }
  }
}

void DecodePerChannel(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                      uint8_t* target) {
  const uint64_t groups = (tile.tokens + tile.group - 1) / tile.group;
  if (!FillsRegisters(tile) || HasNonFinite(params, groups * tile.dim)) {
    reference::DecodePerChannel(tile, codes, params, target);
    return;
  }
  WithType(tile.dtype, [&]<typename Type>(Type) {
    WithWidth(tile.bits, [&]<uint32_t kBits>(Width<kBits>) {
      DecodeChannels<Type, kBits>(tile, codes, params, target);
    });
  });
}

// `count` elements that share one min and range.
template <typename Type, uint32_t kBits>
void DecodeGroup(const uint8_t* codes, const uint8_t* pair, uint32_t count, uint8_t* target) {
  uint16_t halves[2];
  __builtin_memcpy(halves, pair, 4);
  const Float min = Simd::Set(Fp16ToFloat(halves[0]));
  const Float step = Simd::Set(Step(kBits, Fp16ToFloat(halves[1])));
  if constexpr (kBits == 2 && Type::kBytes == 2) {
    if (count % (2 * kLanes) == 0) {
      alignas(64) uint8_t values[2 * kLanes];
      const uint8_t codes_in_turn[4] = {0xE4, 0xE4, 0xE4, 0xE4};
      Type::Store(values, Simd::Add(Simd::Mul(Simd::LoadCodes2(codes_in_turn), step), min));
      Simd::Halves of[4];
      for (uint32_t code = 0; code < 4; ++code) {
        uint16_t half = 0;
        __builtin_memcpy(&half, values + 2 * code, 2);
        of[code] = Simd::SpreadHalf(half);
      }
      for (uint32_t c = 0; c < count; c += 2 * kLanes) {
        Simd::StorePicked(target + uint64_t{2} * c, codes + c / 4, of);
      }
      return;
    }
  }
  for (uint32_t c = 0; c < count; c += kLanes) {
    const Float code = LoadCodes<kBits>(codes + c * kBits / 8);
    Type::Store(target + c * Type::kBytes, Simd::Add(Simd::Mul(code, step), min));
  }
}

void DecodePerToken(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                    uint8_t* target) {
  const uint64_t groups = (tile.dim + tile.group - 1) / tile.group;
  if (!FillsRegisters(tile) || HasNonFinite(params, groups * tile.tokens)) {
    reference::DecodePerToken(tile, codes, params, target);
    return;
  }
  WithType(tile.dtype, [&]<typename Type>(Type) {
    WithWidth(tile.bits, [&]<uint32_t kBits>(Width<kBits>) {
      const uint64_t row_bytes = uint64_t{tile.dim} * kBits / 8;
      for (uint32_t t = 0; t < tile.tokens; ++t) {
        for (uint32_t c = 0; c < tile.dim; c += tile.group) {
          const uint32_t count = tile.dim - c < tile.group ? tile.dim - c : tile.group;
          DecodeGroup<Type, kBits>(codes + t * row_bytes + c * kBits / 8,
                                   params + (t * groups + c / tile.group) * 4, count,
                                   target + (uint64_t{t} * tile.dim + c) * Type::kBytes);
        }
      }
    });
  });
}

}  // namespace
}  // namespace cairn::codecs
