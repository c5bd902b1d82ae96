// SPDX-License-Identifier: Apache-2.0
// select_rows and encode_per_channel of codecs/backend/backend.h, with the primitives of struct
// Simd. Also the code that affine_encode_tokens.inl shares with them.
//
// A two-bit code needs no rounding: Narrow(Code8(x)) is 0 up to position 42.5 of 255, 1 below
// 127.5, 2 up to 212.5, else 3. (The 8-bit codes 42, 127 and 212 are the last ones that narrow to
// 0, 1 and 2. Rounding to even puts 42.5 and 212.5 below the border and 127.5 above.)

namespace cairn::codecs {
namespace {

struct Range {
  Float low, high;
};

struct Params {
  Float min, range;  // fp16 values
};

// Computes MakeParams() of every lane.
Params ParamsOf(const Range& of, float inset) {
  const Float cut = Simd::Mul(Simd::Sub(of.high, of.low), Simd::Set(inset));
  Params params;
  params.min = Simd::Add(Simd::Fp16Down(Simd::Add(of.low, cut)), Simd::Set(0.0F));
  params.range = Simd::Fp16Up(Simd::Sub(Simd::Sub(of.high, cut), params.min));
  return params;
}

// Returns numerator / denominator if the denominator is positive, else 0.
Float QuotientOrZero(Float numerator, Float denominator) {
  const Float zero = Simd::Set(0.0F);
  return Simd::Choose(Simd::Greater(denominator, zero), Simd::Div(numerator, denominator), zero);
}

// Adds up the error of a candidate range.
struct ClipCost {
  Float min, inverse_step, weight;
  Int error;

  void Begin(uint32_t bits, const Params& params, Float covering_range) {
    const Float levels = Simd::Set(Levels(bits));
    min = params.min;
    inverse_step = QuotientOrZero(levels, params.range);
    weight = QuotientOrZero(Simd::Mul(params.range, Simd::Set(4096.0F)),
                            Simd::Mul(levels, covering_range));
    // ClipWeight() tests whether the covering range is positive. Testing its product with the
    // levels is equivalent, since neither underflows.
    error = Simd::Zero();
  }
  void Take(Float value, float levels) {
    const Float position = Simd::Mul(Simd::Sub(value, min), inverse_step);
    const Float nearest = RoundedFloat(Clamped(position, levels));
    const Int distance = RoundedInt(Simd::Mul(Simd::Sub(position, nearest), weight));
    error = Simd::AddInt(error, Simd::Square(distance));
  }
};

// Computes the codes of kCount registers of elements. kCount: 1 or Simd::kCodeFloats.
//   position_at  returns the positions, of 255, of a register's elements
template <uint32_t kBits, uint32_t kCount, typename PositionAt>
[[gnu::always_inline]] inline void StoreCodes(uint8_t* target, PositionAt position_at) {
  Float positions[kCount];
  for (uint32_t i = 0; i < kCount; ++i) positions[i] = position_at(i);
  if constexpr (kBits == 2) {
    Simd::StoreCodes2<kCount>(target, positions);
  } else {
    for (uint32_t i = 0; i < kCount; ++i) {
      const Int code8 = RoundedInt(Clamped(positions[i], 255.0F));
      uint8_t* codes = target + i * kLanes * kBits / 8;
      if constexpr (kBits == 8) Simd::StoreCodes8(codes, code8);
      if constexpr (kBits == 4) Simd::StoreCodes4(codes, Simd::Narrow8To4(code8));
    }
  }
}

Mask InexactConstants(const Range& of) {
  const Float down = Simd::Fp16Down(of.low);
  const Float one = Simd::Set(1.0F);
  const Float is_exact = Simd::Choose(Simd::Equal(down, of.low), one, Simd::Set(0.0F));
  const Float is_constant = Simd::Choose(Simd::Equal(of.low, of.high), one, Simd::Set(0.0F));
  return Simd::Greater(is_constant, is_exact);
}

void SelectRows(const AffineTile& tile, const uint8_t* source, uint64_t* rows) {
  if (!FillsRegisters(tile) || tile.dim < 2 * kLanes) {
    reference::SelectRows(tile, source, rows);
    return;
  }
  WithType(tile.dtype, [&]<typename Type>(Type) {
    const uint32_t bytes = tile.dim * Type::kBytes;
    for (uint32_t t = 0; t < tile.tokens; ++t) {
      if (HasAbove<Type::kBytes>(source + uint64_t{t} * bytes, bytes, Type::kMagnitudeMax)) {
        rows[t / 64] |= uint64_t{1} << (t % 64);
      }
    }
  });
}

// ---- Per channel ----

// kVectors registers of adjacent channels, over the tokens of a group.
template <typename Type, uint32_t kBits, bool kPredicted, uint32_t kVectors>
struct Columns {
  const AffineTile& tile;
  const uint8_t* source;  // of the first channel, token 0
  const uint64_t* rows;
  uint32_t channel;
  uint32_t token_first, token_count;

  static constexpr bool kOrders = Type::kBytes == 2 && kVectors % 2 == 0 && !kPredicted;
  static constexpr uint32_t kHalves = kVectors / 2;  // registers of them, if kOrders

  [[nodiscard]] const uint8_t* AddressOf(uint32_t token, uint32_t vector) const {
    return source + (uint64_t{token} * tile.dim + vector * kLanes) * Type::kBytes;
  }
  // The values of one token.
  struct Row {
    const uint8_t* elements;
    const uint8_t* pattern;  // subtracted from the values; null: none

    [[nodiscard]] Float At(uint32_t vector) const {
      const Float value = Type::Load(elements + uint64_t{vector} * kLanes * Type::kBytes);
      if constexpr (!kPredicted) return value;
      if (pattern == nullptr) return value;
      return Simd::Sub(value, Simd::LoadFp16(pattern + uint64_t{2} * vector * kLanes));
    }
  };
  [[nodiscard]] Row RowAt(uint32_t token) const {
    return {AddressOf(token, 0), kPredicted ? PatternAt(tile, token, channel) : nullptr};
  }
  [[nodiscard]] uint32_t TokenEnd() const { return token_first + token_count; }

  void Bounds(Range* of) const {
    if constexpr (kOrders) {
      OrderedBounds(of);
    } else {
      bool is_first = true;
      for (uint32_t t = token_first; t < TokenEnd(); ++t) {
        if (HasRow(rows, t)) continue;
        const Row row = RowAt(t);
        for (uint32_t v = 0; v < kVectors; ++v) {
          const Float value = row.At(v);
          of[v].low = is_first ? value : Simd::Min(of[v].low, value);
          of[v].high = is_first ? value : Simd::Max(of[v].high, value);
        }
        is_first = false;
      }
      if (is_first) {
        for (uint32_t v = 0; v < kVectors; ++v) of[v] = {Simd::Set(0.0F), Simd::Set(0.0F)};
      }
    }
    for (uint32_t v = 0; v < kVectors; ++v) {
      of[v].low = Simd::Add(of[v].low, Simd::Set(0.0F));
      of[v].high = Simd::Add(of[v].high, Simd::Set(0.0F));
    }
  }

  // The same for 16-bit elements, as integers.
  void OrderedBounds(Range* of) const {
    Simd::Halves low[kHalves];
    Simd::Halves high[kHalves];
    for (uint32_t i = 0; i < kHalves; ++i) {
      low[i] = Simd::AddToHalves(Simd::Zero(), 0x7FFF);
      high[i] = Simd::AddToHalves(Simd::Zero(), -0x8000);
    }
    bool is_empty = true;
    for (uint32_t t = token_first; t < TokenEnd(); ++t) {
      if (HasRow(rows, t)) continue;
      is_empty = false;
      for (uint32_t i = 0; i < kHalves; ++i) {
        const Simd::Halves value = Simd::Ordered(Simd::LoadHalves(AddressOf(t, 2 * i)));
        low[i] = Simd::MinHalves(low[i], value);
        high[i] = Simd::MaxHalves(high[i], value);
      }
    }
    for (uint32_t i = 0; i < kHalves && is_empty; ++i) low[i] = high[i] = Simd::Zero();
    for (uint32_t i = 0; i < kHalves; ++i) {
      alignas(64) uint8_t lows[4 * kLanes];
      alignas(64) uint8_t highs[4 * kLanes];
      Simd::StoreHalves<false>(lows, Simd::Ordered(low[i]));
      Simd::StoreHalves<false>(highs, Simd::Ordered(high[i]));
      for (uint32_t v = 0; v < 2; ++v) {
        of[2 * i + v] = {Type::Load(lows + 2 * v * kLanes), Type::Load(highs + 2 * v * kLanes)};
      }
    }
  }

  // Returns the candidate with the least error, for one register of channels. Tests all candidates
  // in one pass.
  [[nodiscard]] Params Clipped(const Range& of, uint32_t vector) const {
    constexpr uint32_t kCandidates = ClipCount(kBits, true);
    Params candidates[kCandidates];
    ClipCost costs[kCandidates];
    for (uint32_t i = 0; i < kCandidates; ++i) {
      candidates[i] = ParamsOf(of, ClipInset(kBits, i));
      costs[i].Begin(kBits, candidates[i], candidates[0].range);
    }
    for (uint32_t t = token_first; t < TokenEnd(); ++t) {
      if (HasRow(rows, t)) continue;
      const Float value = RowAt(t).At(vector);
      for (uint32_t i = 0; i < kCandidates; ++i) costs[i].Take(value, Levels(kBits));
    }
    Params best = candidates[0];
    Int least = costs[0].error;
    for (uint32_t i = 1; i < kCandidates; ++i) {
      const Mask is_less = Simd::LessInt(costs[i].error, least);
      best.min = Simd::Choose(is_less, candidates[i].min, best.min);
      best.range = Simd::Choose(is_less, candidates[i].range, best.range);
      least = Simd::ChooseInt(is_less, costs[i].error, least);
    }
    return best;
  }

  // Returns false if a channel is constant and not an fp16 value.
  bool Encode(uint8_t* codes, uint8_t* params) const {
    Range of[kVectors];
    Bounds(of);
    Float mins[kVectors];
    Float inverse_steps[kVectors];
    for (uint32_t v = 0; v < kVectors; ++v) {
      if (Simd::Bits(InexactConstants(of[v])) != 0) return false;
      const Params chosen = tile.is_clipped ? Clipped(of[v], v) : ParamsOf(of[v], 0.0F);
      Simd::StorePairs(params + uint64_t{4} * v * kLanes, chosen.min, chosen.range);
      mins[v] = chosen.min;
      inverse_steps[v] = QuotientOrZero(Simd::Set(Levels(8)), chosen.range);
    }
    if constexpr (kOrders && kBits == 2) {
      if (StoreCodesByLimits(mins, inverse_steps, codes)) return true;
    }
    ForEachRowOfCodes(codes, [&](uint32_t t, uint8_t* row_codes) {
      const Row row = RowAt(t);
      constexpr uint32_t kCount = kVectors % Simd::kCodeFloats == 0 ? Simd::kCodeFloats : 1;
      for (uint32_t v = 0; v < kVectors; v += kCount) {
        StoreCodes<kBits, kCount>(row_codes + v * kVectorBytes, [&](uint32_t i) {
          return Simd::Mul(Simd::Sub(row.At(v + i), mins[v + i]), inverse_steps[v + i]);
        });
      }
    });
    return true;
  }

 private:
  static constexpr uint32_t kVectorBytes = kLanes * kBits / 8;

  // Calls store(token, its codes) for every token that has codes, and clears the codes of the
  // others.
  template <typename Store>
  void ForEachRowOfCodes(uint8_t* codes, Store store) const {
    const uint64_t row_bytes = uint64_t{tile.dim} * kBits / 8;
    for (uint32_t t = token_first; t < TokenEnd(); ++t) {
      uint8_t* row = codes + t * row_bytes;
      if (HasRow(rows, t)) {
        __builtin_memset(row, 0, kVectors * kVectorBytes);
      } else {
        store(t, row);
      }
    }
  }

  // Returns false if no limits were found.
  bool StoreCodesByLimits(const Float* mins, const Float* inverse_steps, uint8_t* codes) const {
    Simd::Halves limits[3 * kHalves];
    for (uint32_t i = 0; i < kHalves; ++i) {
      Limits<Type> of(mins + 2 * i, inverse_steps + 2 * i);
      if (!of.Find()) return false;
      for (uint32_t code = 0; code < 3; ++code)
        limits[3 * i + code] = Simd::LoadHalves(of.last[code]);
    }
    ForEachRowOfCodes(codes, [&](uint32_t t, uint8_t* row) {
      codecs::StoreCodesByLimits<kHalves, false>(row, AddressOf(t, 0), limits);
    });
    return true;
  }
};

template <typename Type, uint32_t kBits, bool kPredicted>
bool EncodeChannels(const AffineTile& tile, const uint8_t* source, const uint64_t* rows,
                    uint8_t* codes, uint8_t* params) {
  constexpr uint32_t kWide = 2 * Simd::kCodeHalves;
  const auto encode = [&]<uint32_t kVectors>(uint32_t first, uint32_t channel) {
    const uint32_t count = tile.tokens - first < tile.group ? tile.tokens - first : tile.group;
    const Columns<Type, kBits, kPredicted, kVectors> columns{
        tile, source + channel * Type::kBytes, rows, channel, first, count};
    return columns.Encode(codes + channel * kBits / 8,
                          params + (uint64_t{first / tile.group} * tile.dim + channel) * 4);
  };
  for (uint32_t first = 0; first < tile.tokens; first += tile.group) {
    uint32_t c = 0;
    for (; c + kWide * kLanes <= tile.dim; c += kWide * kLanes) {
      if (!encode.template operator()<kWide>(first, c)) return false;
    }
    for (; c + 2 * kLanes <= tile.dim; c += 2 * kLanes) {
      if (!encode.template operator()<2>(first, c)) return false;
    }
    for (; c < tile.dim; c += kLanes) {
      if (!encode.template operator()<1>(first, c)) return false;
    }
  }
  return true;
}

bool EncodePerChannel(const AffineTile& tile, const uint8_t* source, const uint64_t* rows,
                      uint8_t* codes, uint8_t* params) {
  if (!FillsRegisters(tile)) {
    return reference::EncodePerChannel(tile, source, rows, codes, params);
  }
  return WithType(tile.dtype, [&]<typename Type>(Type) {
    return WithWidth(tile.bits, [&]<uint32_t kBits>(Width<kBits>) {
      return WithPrediction(tile, [&]<bool kPredicted>(Predicted<kPredicted>) {
        return EncodeChannels<Type, kBits, kPredicted>(tile, source, rows, codes, params);
      });
    });
  });
}

}  // namespace
}  // namespace cairn::codecs
