// SPDX-License-Identifier: Apache-2.0
// select_rows, encode_per_channel and encode_per_token of codecs/backend.h in the words of struct
// Simd.
//
// A two-bit code is never rounded: Narrow(Code8(x)) is 0 up to position 42.5 of 255, 1 below 127.5,
// 2 up to 212.5, else 3 (the 8-bit codes 42, 127 and 212 are the last that narrow to 0, 1 and 2;
// rounding to even puts 42.5 and 212.5 below and 127.5 above).

namespace cairn::codecs {
namespace {

struct Range {
  Float low, high;
};

struct Params {
  Float min, range;  // fp16 values
};

// MakeParams() of every lane.
Params ParamsOf(const Range& of, float inset) {
  const Float cut = Simd::Mul(Simd::Sub(of.high, of.low), Simd::Set(inset));
  Params params;
  params.min = Simd::Add(Simd::Fp16Down(Simd::Add(of.low, cut)), Simd::Set(0.0F));
  params.range = Simd::Fp16Up(Simd::Sub(Simd::Sub(of.high, cut), params.min));
  return params;
}

// numerator / denominator where the denominator is positive, else 0.
Float QuotientOrZero(Float numerator, Float denominator) {
  const Float zero = Simd::Set(0.0F);
  return Simd::Choose(Simd::Greater(denominator, zero), Simd::Div(numerator, denominator), zero);
}

// What a candidate range costs, element after element.
struct ClipCost {
  Float min, inverse_step, weight;
  Int error;

  void Begin(uint32_t bits, const Params& params, Float covering_range) {
    const Float levels = Simd::Set(Levels(bits));
    min = params.min;
    inverse_step = QuotientOrZero(levels, params.range);
    weight = QuotientOrZero(Simd::Mul(params.range, Simd::Set(4096.0F)),
                            Simd::Mul(levels, covering_range));
    // ClipWeight() asks whether the covering range is positive, not its product with the levels:
    // the same, since neither underflows.
    error = Simd::Zero();
  }
  void Take(Float value, float levels) {
    const Float position = Simd::Mul(Simd::Sub(value, min), inverse_step);
    const Float nearest = RoundedFloat(Clamped(position, levels));
    const Int distance = RoundedInt(Simd::Mul(Simd::Sub(position, nearest), weight));
    error = Simd::AddInt(error, Simd::Square(distance));
  }
};

// The codes of kLanes elements.
template <uint32_t kBits>
void StoreCodes(uint8_t* target, Float value, Float min, Float inverse_step8) {
  const Float position = Simd::Mul(Simd::Sub(value, min), inverse_step8);
  if constexpr (kBits == 2) {
    const uint32_t past_0 = Simd::Bits(Simd::Greater(position, Simd::Set(42.5F)));
    const uint32_t past_1 = Simd::Bits(Simd::NotLess(position, Simd::Set(127.5F)));
    const uint32_t past_2 = Simd::Bits(Simd::Greater(position, Simd::Set(212.5F)));
    Simd::StoreCodes2(target, past_0 ^ past_1 ^ past_2, past_1);
  } else {
    const Int code8 = RoundedInt(Clamped(position, 255.0F));
    if constexpr (kBits == 8) Simd::StoreCodes8(target, code8);
    if constexpr (kBits == 4) Simd::StoreCodes4(target, Simd::Narrow8To4(code8));
  }
}

Mask InexactConstants(const Range& of) {
  const Float down = Simd::Fp16Down(of.low);
  const Float one = Simd::Set(1.0F);
  const Float is_exact = Simd::Choose(Simd::Equal(down, of.low), one, Simd::Set(0.0F));
  const Float is_constant = Simd::Choose(Simd::Equal(of.low, of.high), one, Simd::Set(0.0F));
  return Simd::Greater(is_constant, is_exact);
}

// Whether a token has an element that cannot be coded.
template <typename Type>
bool IsUncodable(const uint8_t* row, uint32_t bytes) {
  constexpr uint32_t kRegisterBytes = 4 * kLanes;
  Int largest = Simd::Zero();
  for (uint32_t at = 0; at < bytes; at += kRegisterBytes) {
    // The last register overlaps the one before where the row is no multiple of it.
    const uint32_t from = at + kRegisterBytes <= bytes ? at : bytes - kRegisterBytes;
    largest = Type::kBytes == 2 ? Simd::MaxMagnitude16(largest, row + from)
                                : Simd::MaxMagnitude32(largest, row + from);
  }
  return Type::kBytes == 2 ? Simd::AnyAbove16(largest, Type::kMagnitudeMax)
                           : Simd::AnyAbove32(largest, Type::kMagnitudeMax);
}

void SelectRows(const AffineTile& tile, const uint8_t* source, uint64_t* rows) {
  if (!FillsRegisters(tile) || tile.dim < 2 * kLanes) {
    reference::SelectRows(tile, source, rows);
    return;
  }
  WithType(tile.dtype, [&]<typename Type>(Type) {
    const uint32_t bytes = tile.dim * Type::kBytes;
    for (uint32_t t = 0; t < tile.tokens; ++t) {
      if (IsUncodable<Type>(source + uint64_t{t} * bytes, bytes)) {
        rows[t / 64] |= uint64_t{1} << (t % 64);
      }
    }
  });
}

// ---- Per channel ----

// kVectors registers of neighbouring channels over the tokens of a group.
template <typename Type, uint32_t kBits, uint32_t kVectors>
struct Columns {
  const AffineTile& tile;
  const uint8_t* source;  // of the first channel, token 0
  const uint64_t* rows;
  uint32_t token_first, token_count;

  [[nodiscard]] Float At(uint32_t token, uint32_t vector) const {
    return Type::Load(source + (uint64_t{token} * tile.dim + vector * kLanes) * Type::kBytes);
  }
  [[nodiscard]] uint32_t TokenEnd() const { return token_first + token_count; }

  void Bounds(Range* of) const {
    bool is_first = true;
    for (uint32_t t = token_first; t < TokenEnd(); ++t) {
      if (HasRow(rows, t)) continue;
      for (uint32_t v = 0; v < kVectors; ++v) {
        const Float value = At(t, v);
        of[v].low = is_first ? value : Simd::Min(of[v].low, value);
        of[v].high = is_first ? value : Simd::Max(of[v].high, value);
      }
      is_first = false;
    }
    for (uint32_t v = 0; v < kVectors; ++v) {
      of[v].low = is_first ? Simd::Set(0.0F) : Simd::Add(of[v].low, Simd::Set(0.0F));
      of[v].high = is_first ? Simd::Set(0.0F) : Simd::Add(of[v].high, Simd::Set(0.0F));
    }
  }

  // The candidate of least error, for one register of channels: all of them in one pass.
  [[nodiscard]] Params Clipped(const Range& of, uint32_t vector) const {
    constexpr uint32_t kCandidates = kBits == 2 ? 5 : kBits == 4 ? 3 : 1;
    Params candidates[kCandidates];
    ClipCost costs[kCandidates];
    for (uint32_t i = 0; i < kCandidates; ++i) {
      candidates[i] = ParamsOf(of, ClipInset(kBits, i));
      costs[i].Begin(kBits, candidates[i], candidates[0].range);
    }
    for (uint32_t t = token_first; t < TokenEnd(); ++t) {
      if (HasRow(rows, t)) continue;
      const Float value = At(t, vector);
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

  // False where a channel is constant and not an fp16 value.
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
    constexpr uint32_t kVectorBytes = kLanes * kBits / 8;
    const uint64_t row_bytes = uint64_t{tile.dim} * kBits / 8;
    for (uint32_t t = token_first; t < TokenEnd(); ++t) {
      uint8_t* row = codes + t * row_bytes;
      if (HasRow(rows, t)) {
        __builtin_memset(row, 0, kVectors * kVectorBytes);
        continue;
      }
      for (uint32_t v = 0; v < kVectors; ++v) {
        StoreCodes<kBits>(row + v * kVectorBytes, At(t, v), mins[v], inverse_steps[v]);
      }
    }
    return true;
  }
};

template <typename Type, uint32_t kBits>
bool EncodeChannels(const AffineTile& tile, const uint8_t* source, const uint64_t* rows,
                    uint8_t* codes, uint8_t* params) {
  constexpr uint32_t kWide = 4;
  for (uint32_t first = 0; first < tile.tokens; first += tile.group) {
    const uint32_t count = tile.tokens - first < tile.group ? tile.tokens - first : tile.group;
    uint8_t* pairs = params + uint64_t{first / tile.group} * tile.dim * 4;
    uint32_t c = 0;
    for (; c + kWide * kLanes <= tile.dim; c += kWide * kLanes) {
      const Columns<Type, kBits, kWide> columns{tile, source + c * Type::kBytes, rows, first,
                                                count};
      if (!columns.Encode(codes + c * kBits / 8, pairs + uint64_t{4} * c)) return false;
    }
    for (; c < tile.dim; c += kLanes) {
      const Columns<Type, kBits, 1> columns{tile, source + c * Type::kBytes, rows, first, count};
      if (!columns.Encode(codes + c * kBits / 8, pairs + uint64_t{4} * c)) return false;
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
      return EncodeChannels<Type, kBits>(tile, source, rows, codes, params);
    });
  });
}

// ---- Per token ----

// `count` neighbouring channels of one token.
template <typename Type, uint32_t kBits>
struct Run {
  const uint8_t* source;
  uint32_t count;

  [[nodiscard]] Float At(uint32_t channel) const {
    return Type::Load(source + channel * Type::kBytes);
  }

  // Not yet with -0 taken as +0.
  void Bounds(float* low, float* high) const {
    Range of{At(0), At(0)};
    for (uint32_t c = kLanes; c < count; c += kLanes) {
      of.low = Simd::Min(of.low, At(c));
      of.high = Simd::Max(of.high, At(c));
    }
    *low = Simd::ReduceMin(of.low);
    *high = Simd::ReduceMax(of.high);
  }

  // `of` has the run's bounds in every lane, and so has the result.
  [[nodiscard]] Params Clipped(const Range& of) const {
    constexpr uint32_t kCandidates = kBits == 2 ? 5 : kBits == 4 ? 3 : 1;
    Params candidates[kCandidates];
    ClipCost costs[kCandidates];
    for (uint32_t i = 0; i < kCandidates; ++i) {
      candidates[i] = ParamsOf(of, ClipInset(kBits, i));
      costs[i].Begin(kBits, candidates[i], candidates[0].range);
    }
    for (uint32_t c = 0; c < count; c += kLanes) {
      const Float value = At(c);
      for (uint32_t i = 0; i < kCandidates; ++i) costs[i].Take(value, Levels(kBits));
    }
    uint32_t best = 0;
    uint32_t least = Simd::ReduceAdd(costs[0].error);
    for (uint32_t i = 1; i < kCandidates; ++i) {
      const uint32_t error = Simd::ReduceAdd(costs[i].error);
      if (error >= least) continue;
      best = i;
      least = error;
    }
    return candidates[best];
  }

  void Encode(float min, float inverse_step8, uint8_t* codes) const {
    for (uint32_t c = 0; c < count; c += kLanes) {
      StoreCodes<kBits>(codes + c * kBits / 8, At(c), Simd::Set(min), Simd::Set(inverse_step8));
    }
  }
};

// The runs of a tile in the order of their params: token after token, group after group.
template <typename Type, uint32_t kBits>
struct Runs {
  const AffineTile& tile;
  const uint8_t* source;
  uint8_t* codes;
  uint8_t* params;
  uint32_t groups = (tile.dim + tile.group - 1) / tile.group;

  [[nodiscard]] Run<Type, kBits> At(uint32_t token, uint32_t group) const {
    const uint32_t c = group * tile.group;
    const uint32_t count = tile.dim - c < tile.group ? tile.dim - c : tile.group;
    return {source + (uint64_t{token} * tile.dim + c) * Type::kBytes, count};
  }
  [[nodiscard]] uint8_t* CodesAt(uint32_t token, uint32_t group) const {
    return codes + (uint64_t{token} * tile.dim + group * tile.group) * kBits / 8;
  }

  // Up to kLanes runs at once: their params are made together, a lane each.
  struct Batch {
    uint32_t tokens[kLanes];
    uint32_t groups[kLanes];
    alignas(64) float low[kLanes];
    alignas(64) float high[kLanes];
    uint32_t count = 0;
  };

  // Bit i: run i is constant and not an fp16 value, so its token is a row. Where none is, encodes
  // them all.
  [[nodiscard]] uint32_t Encode(Batch& batch) const {
    for (uint32_t i = batch.count; i < kLanes; ++i) batch.low[i] = batch.high[i] = 0.0F;
    const Float zero = Simd::Set(0.0F);
    const Range of{Simd::Add(Simd::LoadFp32(Bytes(batch.low)), zero),
                   Simd::Add(Simd::LoadFp32(Bytes(batch.high)), zero)};
    const uint32_t inexact = Simd::Bits(InexactConstants(of));
    if (inexact != 0) return inexact;
    alignas(64) float mins[kLanes];
    alignas(64) float ranges[kLanes];
    alignas(64) float inverse_steps[kLanes];
    Params chosen = ParamsOf(of, 0.0F);
    if (tile.is_clipped) {
      for (uint32_t i = 0; i < batch.count; ++i) {
        const Range one{Simd::Add(Simd::Set(batch.low[i]), zero),
                        Simd::Add(Simd::Set(batch.high[i]), zero)};
        const Params best = At(batch.tokens[i], batch.groups[i]).Clipped(one);
        mins[i] = Simd::First(best.min);
        ranges[i] = Simd::First(best.range);
      }
      for (uint32_t i = batch.count; i < kLanes; ++i) mins[i] = ranges[i] = 0.0F;
      chosen = {Simd::LoadFp32(Bytes(mins)), Simd::LoadFp32(Bytes(ranges))};
    }
    Simd::StoreFp32(Bytes(mins), chosen.min);
    Simd::StoreFp32(Bytes(inverse_steps), QuotientOrZero(Simd::Set(Levels(8)), chosen.range));
    uint8_t pairs[4 * kLanes];
    Simd::StorePairs(pairs, chosen.min, chosen.range);
    const uint64_t first = uint64_t{batch.tokens[0]} * groups + batch.groups[0];
    __builtin_memcpy(params + 4 * first, pairs, 4 * batch.count);
    for (uint32_t i = 0; i < batch.count; ++i) {
      const uint32_t token = batch.tokens[i];
      const uint32_t group = batch.groups[i];
      At(token, group).Encode(mins[i], inverse_steps[i], CodesAt(token, group));
    }
    return 0;
  }

  static uint8_t* Bytes(float* values) { return reinterpret_cast<uint8_t*>(values); }

  // Tokens [first, end), none of them a row. False, and one more row, where a run is an inexact
  // constant.
  [[nodiscard]] bool EncodeTokens(uint32_t first, uint32_t end, uint64_t* rows) const {
    Batch batch;
    for (uint32_t token = first; token < end; ++token) {
      for (uint32_t group = 0; group < groups; ++group) {
        const uint32_t i = batch.count++;
        batch.tokens[i] = token;
        batch.groups[i] = group;
        At(token, group).Bounds(&batch.low[i], &batch.high[i]);
        const bool is_last = token + 1 == end && group + 1 == groups;
        if (batch.count < kLanes && !is_last) continue;
        const uint32_t inexact = Encode(batch);
        if (inexact != 0) {
          const uint32_t row = batch.tokens[__builtin_ctz(inexact)];
          rows[row / 64] |= uint64_t{1} << (row % 64);
          return false;
        }
        batch.count = 0;
      }
    }
    return true;
  }

  void ClearToken(uint32_t token) const {
    __builtin_memset(CodesAt(token, 0), 0, uint64_t{tile.dim} * kBits / 8);
    __builtin_memset(params + uint64_t{token} * groups * 4, 0, uint64_t{groups} * 4);
  }
};

template <typename Type, uint32_t kBits>
void EncodeTokens(const AffineTile& tile, const uint8_t* source, uint64_t* rows, uint8_t* codes,
                  uint8_t* params) {
  const Runs<Type, kBits> runs{tile, source, codes, params};
  uint32_t first = 0;
  while (first < tile.tokens) {
    if (HasRow(rows, first)) {
      runs.ClearToken(first++);
      continue;
    }
    uint32_t end = first + 1;
    while (end < tile.tokens && !HasRow(rows, end)) ++end;
    // Begins again after every row that is found: at most once a token.
    if (runs.EncodeTokens(first, end, rows)) first = end;
  }
}

void EncodePerToken(const AffineTile& tile, const uint8_t* source, uint64_t* rows, uint8_t* codes,
                    uint8_t* params) {
  if (!FillsRegisters(tile)) {
    reference::EncodePerToken(tile, source, rows, codes, params);
    return;
  }
  WithType(tile.dtype, [&]<typename Type>(Type) {
    WithWidth(tile.bits, [&]<uint32_t kBits>(Width<kBits>) {
      EncodeTokens<Type, kBits>(tile, source, rows, codes, params);
    });
  });
}

}  // namespace
}  // namespace cairn::codecs
