// SPDX-License-Identifier: Apache-2.0
// encode_per_token of codecs/backend.h in the words of struct Simd.

namespace cairn::codecs {
namespace {

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
