// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes attention over codes with a (min, range) per group, without decoding them. A code is
// used as the mantissa of a denormal fp16 number, whose value is code * 2^-24. Products of fp16
// numbers are exact for denormals. The step of a code is multiplied into the other factor of the
// product:
//
// - scores: q . k is the sum over channels of (q * step) * code, plus the sum of q * min. The
//   second sum is the same for all tokens of a part.
// - outputs: p . v is the sum over tokens of (p * step) * code, plus the sum of p * min for each
//   group of V.
//
// A warp processes 32 tokens at a time, from every fourth part of its block's work item. Each warp
// has its own sums; the block joins them at the end. Write the number of a lane as 4 g + p, where g
// is 0 to 7 and p is 0 to 3. Matrix products distribute their operands to lanes by g and p:
//
// - K: g selects one of 8 tokens, p selects 32 of the channels, which is a quarter of the codes.
// - V: p selects two of 8 tokens, g selects 8 channels of each group of 64.
// - queries: g selects the rows g and g + 8, p selects the same channels as for K.
//
// Each product takes two codes from a word with one mask, one code from each half of the word. If
// the mask leaves a code above the lowest bits, its value is too large by a power of two. Queries
// and outputs are scaled to correct this.

#include <cstdint>

#include "kernels/body/affine_decode.h"
#include "kernels/body/attend_steps.h"
#include "kernels/body/attend_sums.h"

namespace cairn::kernels {

// The queries times the steps of a part.
struct SteppedQueries {
  uint32_t of[2][16];  // pairs of channels, for the rows g and g + 8
  float start[2];      // initial value of the sum for each token
};

template <uint32_t kBits>
CAIRN_DEVICE void StepQueries(const AffineAttendShared<kBits>& shared,
                              const AffineStep<kBits>& step, SteppedQueries* queries,
                              Fault* fault) {
  using P = Pairing<kBits>;
  const uint32_t lane = ThreadIndex() % kWarpLanes, p = lane % 4;
  float sums[4] = {};
  uint32_t raw[2][2], mins[2];
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    *fault = Worse(*fault, CheckParams(WordOf(step.k_params[lane], i)));
  }
  CAIRN_UNROLL
  for (uint32_t n = 0; n < 16; ++n) {
    // The channels of pair n, among the 32 channels that p selects.
    const uint32_t low = n / P::kOfHalf * 2 * P::kOfHalf + n % P::kOfHalf;
    const uint32_t high = low + P::kOfHalf;
    const uint32_t a = WordOf(step.k_params[low / 4 * 4 + p], low % 4);
    const uint32_t b = WordOf(step.k_params[high / 4 * 4 + p], high % 4);
    const uint32_t steps = MultiplyHalves(PermuteBytes(a, b, 0x7632),
                                          StepFactors<kBits>(ExcessOf<kBits>(n % P::kOfHalf)));
    mins[n % 2] = PermuteBytes(a, b, 0x5410);
    CAIRN_UNROLL
    for (uint32_t row = 0; row < 2; ++row) {
      raw[n % 2][row] = WordOf(shared.queries[row][n / 4][lane], n % 4);
      queries->of[row][n] = MultiplyHalves(raw[n % 2][row], steps);
    }
    if (n % 2 == 1) MmaHalves(sums, {raw[0][0], raw[0][1], raw[1][0], raw[1][1]}, mins);
  }
  queries->start[0] = codecs::Multiply(sums[0], kDenormalUnit);
  queries->start[1] = codecs::Multiply(sums[2], kDenormalUnit);
}

// Computes the scores of 8 tokens; `first` is the first of them.
template <uint32_t kBits>
CAIRN_DEVICE void ScoreTokens(const AffineStep<kBits>& step, uint32_t first,
                              const SteppedQueries& queries, float (&scores)[4]) {
  using P = Pairing<kBits>;
  const KeyWords<AffineStep<kBits>> words(step, first);
  scores[0] = scores[1] = queries.start[0];
  scores[2] = scores[3] = queries.start[1];
  CAIRN_UNROLL
  for (uint32_t n = 0; n < 16; n += 2) {
    const uint32_t word = words.of[n / P::kOfHalf];
    MmaHalves(scores,
              {queries.of[0][n], queries.of[1][n], queries.of[0][n + 1], queries.of[1][n + 1]},
              {CodePair<kBits>(word, n % P::kOfHalf), CodePair<kBits>(word, (n + 1) % P::kOfHalf)});
  }
}

// Adds the outputs of 16 tokens; `first` is the first of them. `weights` has the weights of the
// first 8 tokens and then of the other 8.
template <uint32_t kBits>
CAIRN_DEVICE void AddValues(const AffineStep<kBits>& step, uint32_t first,
                            const float (&weights)[2][4], AffineSums* sums) {
  constexpr uint32_t kOfHalf = Pairing<kBits>::kOfHalf;
  const uint32_t lane = ThreadIndex() % kWarpLanes, g = lane / 4, p = lane % 4;
  uint32_t pairs[4], extra[2];  // weights as operands; what lane g adds for two tokens
  U32x4 params[2];              // params of two tokens: both groups of one, then both of the other
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 2; ++i) {
    pairs[2 * i] = PackFp16(weights[i][0], weights[i][1]);
    pairs[2 * i + 1] = PackFp16(weights[i][2], weights[i][3]);
    params[i] = *reinterpret_cast<const U32x4*>(step.v_params + first + 8 * i + 2 * p);
    const uint32_t mins = g == 0 ? PermuteBytes(params[i].x, params[i].z, 0x5410)
                                 : PermuteBytes(params[i].y, params[i].w, 0x5410);
    extra[i] = g < kAttendVGroups ? mins : g == 7 ? 0x3C003C00U : 0;  // two numbers 1
  }
  MmaHalves(sums->extras, pairs, extra);
  CAIRN_UNROLL
  for (uint32_t group = 0; group < kAttendVGroups; ++group) {
    uint32_t stepped[4];
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t ranges = group == 0 ? PermuteBytes(params[i].x, params[i].z, 0x7632)
                                         : PermuteBytes(params[i].y, params[i].w, 0x7632);
      const uint32_t steps = MultiplyHalves(ranges, StepFactors<kBits>(0));
      stepped[2 * i] = MultiplyHalves(pairs[2 * i], steps);
      stepped[2 * i + 1] = MultiplyHalves(pairs[2 * i + 1], steps);
    }
    const ValuePairs<kBits> a(step, first, group), b(step, first + 8, group);
    CAIRN_UNROLL
    for (uint32_t j = 0; j < 8; ++j) {
      MmaHalves(sums->outputs[group][j], stepped,
                {CodePair<kBits>(a.of[j / kOfHalf], j % kOfHalf),
                 CodePair<kBits>(b.of[j / kOfHalf], j % kOfHalf)});
    }
  }
}

// ---- Work items ----

// Checks the params of 32 tokens, one token per lane. Sets the params of absent tokens to zero.
template <uint32_t kBits>
CAIRN_DEVICE void CheckValueParams(uint32_t tokens, AffineStep<kBits>* step, Fault* fault) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  if (lane < tokens) {
    const U32x2 pairs = step->v_params[lane];
    *fault = Worse(*fault, Worse(CheckParams(pairs.x), CheckParams(pairs.y)));
  } else {
    step->v_params[lane] = {0, 0};
  }
  if (tokens < kStepTokens) SyncWarp();
}

// Computes a warp's sums over a work item.
template <uint32_t kBits>
CAIRN_DEVICE void SumParts(const AttendArgs& args, const AttendReader& reader,
                           const AttendWork& work, AffineAttendShared<kBits>* shared,
                           AffineSums* sums) {
  SteppedQueries queries{};
  ForEachStep(args, reader, work, shared, [&](AffineStep<kBits>& step, Fault* fault) {
    const uint32_t tokens = Uniform(step.tokens);
    CheckValueParams(tokens, &step, fault);
    if (Uniform(step.is_first) != 0) StepQueries(*shared, step, &queries, fault);
    float scores[4][4];
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) ScoreTokens(step, 8 * i, queries, scores[i]);
    WeighTokens(shared->factors, tokens, scores, sums);
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; i += 2) {
      const float weights[2][4] = {
          {scores[i][0], scores[i][1], scores[i][2], scores[i][3]},
          {scores[i + 1][0], scores[i + 1][1], scores[i + 1][2], scores[i + 1][3]}};
      AddValues(step, 8 * i, weights, sums);
    }
  });
}

template <uint32_t kBits>
CAIRN_KERNEL CAIRN_BOUNDS(kAttendThreads, kBits == 2 ? 3 : 2) AttendAffine(AttendArgs args) {
  static_assert(kAttendThreads == kAttendDim && kAttendThreads == 8 * kAttendRows);
  CAIRN_SHARED(AffineAttendShared<kBits>, shared);
  // The list is a constant, so that it needs no register.
  const AttendReader reader(args.plan, AttendAffineList(kBits));
  for (uint32_t i = BlockIndex(); i < reader.WorkCount(); i += GridBlocks()) {
    LayOutQueries(reader, reader.Work(i), kDenormalUnitInverse, &shared);
    SyncBlock();
    AffineSums sums{};
    sums.largest[0] = sums.largest[1] = kNoScore;
    SumParts(args, reader, reader.Work(i), &shared, &sums);
    SyncBlock();  // outputs are stored where steps were
    LeaveSums(
        sums,
        [](uint32_t j) {
          constexpr uint32_t kOfHalf = Pairing<kBits>::kOfHalf;
          return kDenormalUnitInverse / static_cast<float>(1U << ExcessOf<kBits>(j % kOfHalf));
        },
        &shared);
    SyncBlock();
    const AttendWork work = reader.Work(i);  // read again to save registers
    JoinWarps(reader.SlotFloats(), shared, RowCount(reader.Queries(work.queries), work),
              SlotOf(args, reader.SlotFloats(), work.slot));
    SyncBlock();  // shared memory is reused for the next work
  }
}

}  // namespace cairn::kernels
