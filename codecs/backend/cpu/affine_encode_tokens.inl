// SPDX-License-Identifier: Apache-2.0
// encode_per_token of codecs/backend/backend.h, with the primitives of struct Simd.

namespace cairn::codecs {
namespace {

// `count` adjacent channels of one token.
template <typename Type, uint32_t kBits, bool kPredicted>
struct Run {
  const uint8_t* source;
  const uint8_t* pattern;  // subtracted from the values; null: none
  uint32_t count;

  static constexpr bool kOrders = Type::kBytes == 2 && !kPredicted;

  [[nodiscard]] Float At(uint32_t channel) const {
    const Float value = Type::Load(source + channel * Type::kBytes);
    if constexpr (!kPredicted) return value;
    return pattern == nullptr ? value
                              : Simd::Sub(value, Simd::LoadFp16(pattern + uint64_t{2} * channel));
  }

  // The bounds may still be -0 instead of +0.
  void Bounds(float* low, float* high) const {
    if constexpr (kOrders) {
      if (count % (2 * kLanes) == 0) return OrderedBounds(low, high);
    }
    Range of{At(0), At(0)};
    for (uint32_t c = kLanes; c < count; c += kLanes) {
      of.low = Simd::Min(of.low, At(c));
      of.high = Simd::Max(of.high, At(c));
    }
    *low = Simd::ReduceMin(of.low);
    *high = Simd::ReduceMax(of.high);
  }

  // The same for 16-bit elements, as integers.
  void OrderedBounds(float* low, float* high) const {
    Simd::Halves least = Simd::Ordered(Simd::LoadHalves(source));
    Simd::Halves most = least;
    for (uint32_t c = 2 * kLanes; c < count; c += 2 * kLanes) {
      const Simd::Halves value = Simd::Ordered(Simd::LoadHalves(source + uint64_t{2} * c));
      least = Simd::MinHalves(least, value);
      most = Simd::MaxHalves(most, value);
    }
    *low = Type::ToFloat(OrderedOne(Simd::ReduceMinHalves(least)));
    *high = Type::ToFloat(OrderedOne(Simd::ReduceMaxHalves(most)));
  }

  // `of` has the run's bounds in every lane, and so does the result.
  [[nodiscard]] Params Clipped(const Range& of) const {
    constexpr uint32_t kCandidates = ClipCount(kBits, false);
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

  // REQUIRES: count is a multiple of 2 * kLanes.
  void EncodeByLimits(const Simd::Halves* limits, uint8_t* codes) const {
    constexpr uint32_t kMany = Simd::kCodeHalves * 2 * kLanes;
    uint32_t c = 0;
    for (; c + kMany <= count; c += kMany) {
      StoreCodesByLimits<Simd::kCodeHalves, true>(codes + c / 4, source + uint64_t{2} * c, limits);
    }
    for (; c < count; c += 2 * kLanes) {
      StoreCodesByLimits<1, true>(codes + c / 4, source + uint64_t{2} * c, limits);
    }
  }

  void Encode(float min, float inverse_step8, uint8_t* codes) const {
    const auto store = [&]<uint32_t kCount>(uint32_t first) {
      StoreCodes<kBits, kCount>(codes + first * kBits / 8, [&](uint32_t i) {
        return Simd::Mul(Simd::Sub(At(first + i * kLanes), Simd::Set(min)),
                         Simd::Set(inverse_step8));
      });
    };
    constexpr uint32_t kMany = Simd::kCodeFloats * kLanes;
    uint32_t c = 0;
    for (; c + kMany <= count; c += kMany) store.template operator()<Simd::kCodeFloats>(c);
    for (; c < count; c += kLanes) store.template operator()<1>(c);
  }
};

// The runs of a tile in the order of their params: token after token, group after group.
template <typename Type, uint32_t kBits, bool kPredicted>
struct Runs {
  using OneRun = Run<Type, kBits, kPredicted>;
  const AffineTile& tile;
  const uint8_t* source;
  uint8_t* codes;
  uint8_t* params;
  uint32_t groups = (tile.dim + tile.group - 1) / tile.group;

  [[nodiscard]] OneRun At(uint32_t token, uint32_t group) const {
    const uint32_t c = group * tile.group;
    const uint32_t count = tile.dim - c < tile.group ? tile.dim - c : tile.group;
    return {source + (uint64_t{token} * tile.dim + c) * Type::kBytes, PatternAt(tile, token, c),
            count};
  }
  [[nodiscard]] uint8_t* CodesAt(uint32_t token, uint32_t group) const {
    return codes + (uint64_t{token} * tile.dim + group * tile.group) * kBits / 8;
  }

  // Up to two registers of runs: their params are computed together, one run per lane.
  struct Batch {
    static constexpr uint32_t kRuns = 2 * kLanes;
    uint32_t tokens[kRuns];
    uint32_t groups[kRuns];
    alignas(64) float low[kRuns];
    alignas(64) float high[kRuns];
    uint32_t count = 0;
  };

  // Sets bit i if run i is constant and not an fp16 value, so that its token is a row. If no bit is
  // set, encodes all runs.
  [[nodiscard]] uint32_t Encode(Batch& batch) const {
    for (uint32_t i = batch.count; i < Batch::kRuns; ++i) {
      batch.low[i] = batch.low[0];
      batch.high[i] = batch.high[0];
    }
    Params chosen[2];
    Float mins[2];
    Float inverse_steps[2];
    uint8_t pairs[4 * Batch::kRuns];
    for (uint32_t v = 0; v < 2; ++v) {
      const uint32_t lane = v * kLanes;
      const Float zero = Simd::Set(0.0F);
      const Range of{Simd::Add(Simd::LoadFp32(Bytes(batch.low + lane)), zero),
                     Simd::Add(Simd::LoadFp32(Bytes(batch.high + lane)), zero)};
      const uint32_t inexact = Simd::Bits(InexactConstants(of));
      if (inexact != 0) return inexact << lane;
      chosen[v] = tile.is_clipped ? Clipped(batch, lane) : ParamsOf(of, 0.0F);
      Simd::StorePairs(pairs + uint64_t{4} * lane, chosen[v].min, chosen[v].range);
      mins[v] = chosen[v].min;
      inverse_steps[v] = QuotientOrZero(Simd::Set(Levels(8)), chosen[v].range);
    }
    const uint64_t first = uint64_t{batch.tokens[0]} * groups + batch.groups[0];
    __builtin_memcpy(params + 4 * first, pairs, 4 * batch.count);
    EncodeRuns(batch, mins, inverse_steps);
    return 0;
  }

  // Returns the best ranges of the runs [lane, lane + kLanes) of a batch.
  [[nodiscard]] Params Clipped(const Batch& batch, uint32_t lane) const {
    const Float zero = Simd::Set(0.0F);
    alignas(64) float mins[kLanes] = {};
    alignas(64) float ranges[kLanes] = {};
    for (uint32_t i = 0; i < kLanes && lane + i < batch.count; ++i) {
      const uint32_t run = lane + i;
      const Range one{Simd::Add(Simd::Set(batch.low[run]), zero),
                      Simd::Add(Simd::Set(batch.high[run]), zero)};
      const Params best = At(batch.tokens[run], batch.groups[run]).Clipped(one);
      mins[i] = Simd::First(best.min);
      ranges[i] = Simd::First(best.range);
    }
    return {Simd::LoadFp32(Bytes(mins)), Simd::LoadFp32(Bytes(ranges))};
  }

  void EncodeRuns(const Batch& batch, const Float* mins, const Float* inverse_steps) const {
    const auto for_each = [&](auto encode) {
      for (uint32_t i = 0; i < batch.count; ++i) {
        const uint32_t token = batch.tokens[i];
        const uint32_t group = batch.groups[i];
        encode(i, At(token, group), CodesAt(token, group));
      }
    };
    if constexpr (kBits == 2 && OneRun::kOrders) {
      Limits<Type> limits(mins, inverse_steps);
      if (tile.dim % (2 * kLanes) == 0 && tile.group % (2 * kLanes) == 0 && limits.Find()) {
        for_each([&](uint32_t i, const OneRun& run, uint8_t* run_codes) {
          const Simd::Halves of[3] = {Simd::SpreadHalf(limits.last[0] + 2 * i),
                                      Simd::SpreadHalf(limits.last[1] + 2 * i),
                                      Simd::SpreadHalf(limits.last[2] + 2 * i)};
          run.EncodeByLimits(of, run_codes);
        });
        return;
      }
    }
    alignas(64) float min[Batch::kRuns];
    alignas(64) float inverse_step[Batch::kRuns];
    for (uint32_t v = 0; v < 2; ++v) {
      Simd::StoreFp32(Bytes(min + v * kLanes), mins[v]);
      Simd::StoreFp32(Bytes(inverse_step + v * kLanes), inverse_steps[v]);
    }
    for_each([&](uint32_t i, const OneRun& run, uint8_t* run_codes) {
      run.Encode(min[i], inverse_step[i], run_codes);
    });
  }

  // Encodes tokens [first, end), none of which is a row. If a run is an inexact constant, adds its
  // token to the rows and returns false.
  [[nodiscard]] bool EncodeTokens(uint32_t first, uint32_t end, uint64_t* rows) const {
    Batch batch;
    const Span* spans = kPredicted ? tile.prediction->spans : nullptr;
    for (uint32_t token = first; token < end; ++token) {
      for (uint32_t group = 0; group < groups; ++group) {
        const uint32_t i = batch.count++;
        batch.tokens[i] = token;
        batch.groups[i] = group;
        if (spans == nullptr) {
          At(token, group).Bounds(&batch.low[i], &batch.high[i]);
        } else {
          batch.low[i] = spans[uint64_t{token} * groups + group].low;
          batch.high[i] = spans[uint64_t{token} * groups + group].high;
        }
        const bool is_last = token + 1 == end && group + 1 == groups;
        if (batch.count < Batch::kRuns && !is_last) continue;
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

template <typename Type, uint32_t kBits, bool kPredicted>
void EncodeTokens(const AffineTile& tile, const uint8_t* source, uint64_t* rows, uint8_t* codes,
                  uint8_t* params) {
  const Runs<Type, kBits, kPredicted> runs{tile, source, codes, params};
  uint32_t first = 0;
  while (first < tile.tokens) {
    if (HasRow(rows, first)) {
      runs.ClearToken(first++);
      continue;
    }
    uint32_t end = first + 1;
    while (end < tile.tokens && !HasRow(rows, end)) ++end;
    // Starts again after every new row: at most once per token.
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
      WithPrediction(tile, [&]<bool kPredicted>(Predicted<kPredicted>) {
        EncodeTokens<Type, kBits, kPredicted>(tile, source, rows, codes, params);
      });
    });
  });
}

}  // namespace
}  // namespace cairn::codecs
