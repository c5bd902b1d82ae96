// SPDX-License-Identifier: Apache-2.0
// decode_per_channel, decode_per_token and copy_streamed of codecs/backend/backend.h, with the
// primitives of struct Simd.
//
// Two-bit codes of 16-bit elements need no arithmetic: a group has four values, which are computed
// once and then selected. All other codes need one multiply, one add and one rounding per element.
//
// A streamed target is written in whole cache lines. Memory bandwidth is the bound, and a store
// that does not read its line first costs half.

namespace cairn::codecs {
namespace {

// Columns of K that are decoded at a time, so that the data of a group stays in the first-level
// cache.
constexpr uint32_t kPanel = 256;

template <uint32_t kBits>
Float LoadCodes(const uint8_t* source) {
  if constexpr (kBits == 8) return Simd::LoadCodes8(source);
  if constexpr (kBits == 4) return Simd::LoadCodes4(source);
  return Simd::LoadCodes2(source);
}

// A min or range that is not finite decodes to values that are not finite, including NaN. The
// reference loops process it, since the roundings here do not support NaN.
bool HasNonFinite(const uint8_t* params, uint64_t pairs) {
  return HasAbove<2>(params, 4 * pairs, 0x7BFF);
}

// The variant of decoding. kVectors: registers of floats at a time.
template <typename ElementType, uint32_t kCodeBits, bool kPredicted, uint32_t kVectorCount,
          bool kStreamed>
struct DecodeVariant {
  using Type = ElementType;
  static constexpr uint32_t kBits = kCodeBits;
  static constexpr uint32_t kVectors = kVectorCount;
  static constexpr bool kStreams = kStreamed;
  static constexpr uint32_t kWidth = kVectors * kLanes;  // elements
  static constexpr bool kPicks = kBits == 2 && Type::kBytes == 2 && kVectors == 2 && !kPredicted;

  // Computes the elements of kWidth codes.
  //   pattern  the pattern that was subtracted from them; null: none
  static void Compute(const uint8_t* codes, const Float* steps, const Float* mins,
                      const uint8_t* pattern, uint8_t* target) {
    Float values[kVectors];
    for (uint32_t v = 0; v < kVectors; ++v) {
      const Float code = LoadCodes<kBits>(codes + v * kLanes * kBits / 8);
      values[v] = Simd::Add(Simd::Mul(code, steps[v]), mins[v]);
    }
    if (kPredicted && pattern != nullptr) {
      for (uint32_t v = 0; v < kVectors; ++v) {
        const Float taken = Simd::LoadFp16(pattern + uint64_t{2} * v * kLanes);
        values[v] = Simd::Add(values[v], taken);
      }
    }
    if constexpr (kVectors == 2) {
      Type::template StoreTwo<kStreams>(target, values[0], values[1]);
    } else {
      Type::Store(target, values[0]);
    }
  }
};

constexpr uint32_t kLineBytes = 64;

// Returns whether rows of this size are whole cache lines.
bool HasLines(uint64_t row_bytes, const uint8_t* target) {
  return row_bytes % kLineBytes == 0 && reinterpret_cast<uintptr_t>(target) % kLineBytes == 0;
}

// Calls `run` with the variant that the tile and its target allow.
template <typename Run>
void WithVariant(const AffineTile& tile, const uint8_t* target, Run run) {
  WithType(tile.dtype, [&]<typename Type>(Type) {
    WithWidth(tile.bits, [&]<uint32_t kBits>(Width<kBits>) {
      WithPrediction(tile, [&]<bool kPredicted>(Predicted<kPredicted>) {
        const bool is_even = tile.dim % (2 * kLanes) == 0 && tile.group % (2 * kLanes) == 0;
        if (!is_even) {
          run(DecodeVariant<Type, kBits, kPredicted, 1, false>());
        } else if (!tile.is_streamed || !HasLines(tile.dim * Type::kBytes, target)) {
          run(DecodeVariant<Type, kBits, kPredicted, 2, false>());
        } else {
          run(DecodeVariant<Type, kBits, kPredicted, 2, true>());
          Simd::EndStreams();
        }
      });
    });
  });
}

// kLanes pairs of params, converted for arithmetic on codes.
struct Steps {
  Float min, step;

  Steps(uint32_t bits, const uint8_t* params) {
    Simd::LoadPairs(params, &min, &step);
    step = Simd::Div(step, Simd::Set(Levels(bits)));
  }
  // Returns the value of a code in each of the kLanes groups, 16 bits each.
  template <typename Type>
  void StoreValues(uint32_t code, uint8_t* target) const {
    const Float value = Simd::Set(static_cast<float>(code));
    Type::Store(target, Simd::Add(Simd::Mul(value, step), min));
  }
};

// Prefetches what is read after the tile, while codes at these bytes are decoded. Two-bit codes are
// so few that the processor's own prefetch is enough.
template <typename DecodeVariant>
[[gnu::always_inline]] inline void AskBehind(const AffineTile& tile, uint64_t at, uint64_t bytes) {
  if constexpr (DecodeVariant::kPicks) return;
  if (tile.behind != nullptr) Strips::Ask(tile.behind + at, bytes);
}

// ---- Per channel ----

struct Panel {
  uint32_t token_first, token_count;
  uint32_t channel_first, channel_count;

  [[nodiscard]] uint32_t TokenEnd() const { return token_first + token_count; }
};

template <typename DecodeVariant>
void ComputePanel(const AffineTile& tile, const Panel& panel, const uint8_t* codes,
                  const uint8_t* params, uint8_t* target) {
  alignas(64) float mins[kPanel];
  alignas(64) float steps[kPanel];
  for (uint32_t c = 0; c < panel.channel_count; c += kLanes) {
    const Steps of(DecodeVariant::kBits, params + uint64_t{4} * c);
    Simd::StoreFp32(Bytes(mins + c), of.min);
    Simd::StoreFp32(Bytes(steps + c), of.step);
  }
  for (uint32_t t = panel.token_first; t < panel.TokenEnd(); ++t) {
    const uint64_t at = uint64_t{t} * tile.dim + panel.channel_first;
    const uint8_t* pattern = PatternAt(tile, t, panel.channel_first);
    AskBehind<DecodeVariant>(tile, at * DecodeVariant::kBits / 8,
                             uint64_t{panel.channel_count} * DecodeVariant::kBits / 8);
    for (uint32_t c = 0; c < panel.channel_count; c += DecodeVariant::kWidth) {
      Float step[DecodeVariant::kVectors];
      Float min[DecodeVariant::kVectors];
      for (uint32_t v = 0; v < DecodeVariant::kVectors; ++v) {
        step[v] = Simd::LoadFp32(Bytes(steps + c + v * kLanes));
        min[v] = Simd::LoadFp32(Bytes(mins + c + v * kLanes));
      }
      DecodeVariant::Compute(codes + (at + c) * DecodeVariant::kBits / 8, step, min,
                             pattern == nullptr ? nullptr : pattern + uint64_t{2} * c,
                             target + (at + c) * DecodeVariant::Type::kBytes);
    }
  }
}

// Decodes columns [column, column + kCount * DecodeVariant::kWidth) of a panel whose values are
// computed.
template <typename DecodeVariant, uint32_t kCount>
void PickColumns(const AffineTile& tile, const Panel& panel, uint32_t column, const uint8_t* codes,
                 const uint8_t (*values)[2 * kPanel], uint8_t* target) {
  Simd::Halves of[kCount][4];
  for (uint32_t i = 0; i < kCount; ++i) {
    for (uint32_t code = 0; code < 4; ++code) {
      of[i][code] = Simd::LoadHalves(values[code] + 2 * (column + i * DecodeVariant::kWidth));
    }
  }
  for (uint32_t t = panel.token_first; t < panel.TokenEnd(); ++t) {
    const uint64_t at = uint64_t{t} * tile.dim + panel.channel_first + column;
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint64_t element = at + i * DecodeVariant::kWidth;
      Simd::StorePicked<DecodeVariant::kStreams>(target + 2 * element, codes + element / 4, of[i]);
    }
  }
}

template <typename DecodeVariant>
void PickPanel(const AffineTile& tile, const Panel& panel, const uint8_t* codes,
               const uint8_t* params, uint8_t* target) {
  alignas(64) uint8_t values[4][2 * kPanel];
  for (uint32_t c = 0; c < panel.channel_count; c += kLanes) {
    const Steps of(2, params + uint64_t{4} * c);
    for (uint32_t code = 0; code < 4; ++code) {
      of.StoreValues<typename DecodeVariant::Type>(code, values[code] + 2 * c);
    }
  }
  constexpr uint32_t kCount = kLineBytes / (2 * DecodeVariant::kWidth);  // to a line
  uint32_t c = 0;
  for (; c + kCount * DecodeVariant::kWidth <= panel.channel_count;
       c += kCount * DecodeVariant::kWidth) {
    PickColumns<DecodeVariant, kCount>(tile, panel, c, codes, values, target);
  }
  for (; c < panel.channel_count; c += DecodeVariant::kWidth) {
    PickColumns<DecodeVariant, 1>(tile, panel, c, codes, values, target);
  }
}

void DecodePerChannel(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                      uint8_t* target) {
  const uint64_t groups = (tile.tokens + tile.group - 1) / tile.group;
  if (!FillsRegisters(tile) || HasNonFinite(params, groups * tile.dim)) {
    reference::DecodePerChannel(tile, codes, params, target);
    return;
  }
  WithVariant(tile, target, [&]<typename DecodeVariant>(DecodeVariant) {
    for (uint32_t first = 0; first < tile.tokens; first += tile.group) {
      const uint32_t count = tile.tokens - first < tile.group ? tile.tokens - first : tile.group;
      for (uint32_t channel = 0; channel < tile.dim; channel += kPanel) {
        const uint32_t channels = tile.dim - channel < kPanel ? tile.dim - channel : kPanel;
        const Panel panel{first, count, channel, channels};
        const uint8_t* pairs = params + (uint64_t{first / tile.group} * tile.dim + channel) * 4;
        if constexpr (DecodeVariant::kPicks) {
          PickPanel<DecodeVariant>(tile, panel, codes, pairs, target);
        } else {
          ComputePanel<DecodeVariant>(tile, panel, codes, pairs, target);
        }
      }
    }
  });
}

// ---- Per token ----

// The data for the elements of kLanes groups: their values, or mins and steps.
template <typename DecodeVariant>
struct GroupBatch {
  alignas(64) uint8_t values[4][2 * kLanes];
  alignas(64) float mins[kLanes];
  alignas(64) float steps[kLanes];

  void Make(const uint8_t* params) {
    const Steps of(DecodeVariant::kBits, params);
    if constexpr (DecodeVariant::kPicks) {
      for (uint32_t code = 0; code < 4; ++code) {
        of.StoreValues<typename DecodeVariant::Type>(code, values[code]);
      }
    } else {
      Simd::StoreFp32(Bytes(mins), of.min);
      Simd::StoreFp32(Bytes(steps), of.step);
    }
  }

  // Decodes `count` elements of group i.
  void Decode(uint32_t i, const uint8_t* codes, uint32_t count, const uint8_t* pattern,
              uint8_t* target) const {
    if constexpr (DecodeVariant::kPicks) {
      Simd::Halves of[4];
      for (uint32_t code = 0; code < 4; ++code) of[code] = Simd::SpreadHalf(values[code] + 2 * i);
      for (uint32_t c = 0; c < count; c += DecodeVariant::kWidth) {
        Simd::StorePicked<DecodeVariant::kStreams>(target + uint64_t{2} * c, codes + c / 4, of);
      }
    } else {
      const Float step[2] = {Simd::Set(steps[i]), Simd::Set(steps[i])};
      const Float min[2] = {Simd::Set(mins[i]), Simd::Set(mins[i])};
      for (uint32_t c = 0; c < count; c += DecodeVariant::kWidth) {
        DecodeVariant::Compute(codes + c * DecodeVariant::kBits / 8, step, min,
                               pattern == nullptr ? nullptr : pattern + uint64_t{2} * c,
                               target + c * DecodeVariant::Type::kBytes);
      }
    }
  }
};

void DecodePerToken(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                    uint8_t* target) {
  const uint32_t groups = (tile.dim + tile.group - 1) / tile.group;
  const uint32_t pairs = groups * tile.tokens;
  if (!FillsRegisters(tile) || HasNonFinite(params, pairs)) {
    reference::DecodePerToken(tile, codes, params, target);
    return;
  }
  WithVariant(tile, target, [&]<typename DecodeVariant>(DecodeVariant) {
    GroupBatch<DecodeVariant> batch;
    uint64_t element = 0;  // the first of the next group
    uint32_t channel = 0;
    for (uint32_t pair = 0; pair < pairs; pair += kLanes) {
      const uint32_t count = pairs - pair < kLanes ? pairs - pair : kLanes;
      uint8_t some[4 * kLanes] = {};
      if (count < kLanes) __builtin_memcpy(some, params + uint64_t{4} * pair, 4 * count);
      batch.Make(count < kLanes ? some : params + uint64_t{4} * pair);
      AskBehind<DecodeVariant>(tile, element * DecodeVariant::kBits / 8,
                               uint64_t{count} * tile.group * DecodeVariant::kBits / 8);
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t rest = tile.dim - channel;
        const uint32_t channels = rest < tile.group ? rest : tile.group;
        batch.Decode(i, codes + element * DecodeVariant::kBits / 8, channels,
                     PatternAt(tile, (pair + i) / groups, channel),
                     target + element * DecodeVariant::Type::kBytes);
        element += channels;
        channel = channels == rest ? 0 : channel + channels;
      }
    }
  });
}

// ---- Raw ----

void CopyStreamed(const uint8_t* source, uint64_t bytes, uint8_t* target) {
  const uint64_t past = reinterpret_cast<uintptr_t>(target) % kLineBytes;
  uint64_t at = past == 0 ? 0 : kLineBytes - past;
  if (bytes < at + kLineBytes) at = bytes;
  __builtin_memcpy(target, source, at);
  for (; at + kLineBytes <= bytes; at += kLineBytes) {
    for (uint32_t i = 0; i < kLineBytes; i += 4 * kLanes) {
      Simd::StoreHalves<true>(target + at + i, Simd::LoadHalves(source + at + i));
    }
  }
  Simd::EndStreams();
  __builtin_memcpy(target + at, source + at, bytes - at);
}

}  // namespace
}  // namespace cairn::codecs
