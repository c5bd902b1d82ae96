// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes attention over E4M3 codes with a scale per token, without decoding them. A code's bits
// are moved below the highest exponent bit of an fp16 number. The number is then exactly 2^-8 of
// the code's value, and is never infinite or NaN. The layout of codes and lanes is that of
// attend_affine.h with 8 bits. Scales of K are multiplied into the scores, and scales of V into the
// weights.

#include <cstdint>

#include "kernels/body/attend_steps.h"
#include "kernels/body/attend_sums.h"
#include "kernels/body/fp8_decode.h"

namespace cairn::kernels {

inline constexpr float kE4m3Unit = 256.0F;  // value of a code / number that the products use

// A step: the data of 32 tokens, in shared memory.
template <uint32_t kOfDim>
struct Fp8Step {
  static constexpr uint32_t kBits = 8, kDim = kOfDim, kRowBytes = kDim,
                            kSteps = 3;  // copied at a time
  alignas(16) uint8_t k_codes[kStepTokens * kRowBytes];
  alignas(16) uint8_t v_codes[kStepTokens * kRowBytes];
  alignas(16) uint16_t k_scales[kStepTokens];
  alignas(16) uint16_t v_scales[kStepTokens];
  uint32_t tokens;    // number of tokens
  uint32_t status;    // index of their status word
  uint32_t is_first;  // whether it is the first step of its part
};
template <uint32_t kDim>
using Fp8AttendShared = StepsShared<Fp8Step<kDim>>;

// A piece of 16 bytes has eight scales. There is padding after the last scale of a tile.
template <uint32_t kDim>
CAIRN_DEVICE void AskForParams(const AffinePart& part, uint32_t token, uint32_t tokens,
                               Fp8Step<kDim>* step) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, first = lane % 4 * 8;
  if (lane >= 8 || first >= tokens) return;
  const uint8_t* scales = part.image + (lane < 4 ? part.k_params : part.v_params);
  CopyAsync16((lane < 4 ? step->k_scales : step->v_scales) + first, scales + 2 * (token + first));
}

// Returns bytes 0 and 2 of a word, or 1 and 3, as fp16 numbers.
CAIRN_DEVICE uint32_t E4m3Pair(uint32_t word, uint32_t i) {
  return i == 0 ? (word << 7 & 0x3F803F80U) | (word << 8 & 0x80008000U)
                : (word >> 1 & 0x3F803F80U) | (word & 0x80008000U);
}

// Finds codes that are NaNs. Adding 1 to a magnitude carries into the sign bit only if it is 127,
// that is NaN.
struct NanFinder {
  uint32_t seen = 0;

  CAIRN_DEVICE_MEMBER void Look(uint32_t word) { seen |= (word & 0x7F7F7F7FU) + 0x01010101U; }
  [[nodiscard]] CAIRN_DEVICE_MEMBER bool HasFound() const { return (seen & 0x80808080U) != 0; }
};

// Checks the scales of tokens, one token per lane. Sets the data of absent tokens to zero.
template <uint32_t kDim>
CAIRN_DEVICE void CheckScales(uint32_t tokens, Fp8Step<kDim>* step, Fault* fault) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  if (lane < tokens) {
    const bool are_scales = step->k_scales[lane] < 0x7C00 && step->v_scales[lane] < 0x7C00;
    if (!are_scales) *fault = Worse(*fault, Fault::kBadTile);
  } else {
    step->v_scales[lane] = 0;
    for (uint32_t piece = 0; piece < kDim; piece += 16) {
      *reinterpret_cast<U32x4*>(step->k_codes + lane * kDim + piece) = {0, 0, 0, 0};
      *reinterpret_cast<U32x4*>(step->v_codes + VSlotOf(lane) * kDim + piece) = {0, 0, 0, 0};
    }
  }
  if (tokens < kStepTokens) SyncWarp();
}

// Computes the scores of 8 tokens; `first` is the first of them.
template <uint32_t kDim>
CAIRN_DEVICE void ScoreFp8(const Fp8Step<kDim>& step, uint32_t first,
                           const U32x4 (&queries)[2][kDim / 32], NanFinder* nans,
                           float (&scores)[4]) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, p = lane % 4;
  const KeyWords<Fp8Step<kDim>> words(step, first);
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 4; ++i) scores[i] = 0.0F;
  CAIRN_UNROLL
  for (uint32_t i = 0; i < kDim / 16; ++i) {
    nans->Look(words.of[i]);
    const U32x4& a = queries[0][i / 2];
    const U32x4& b = queries[1][i / 2];
    const uint32_t rows[4] = {i % 2 == 0 ? a.x : a.z, i % 2 == 0 ? b.x : b.z,
                              i % 2 == 0 ? a.y : a.w, i % 2 == 0 ? b.y : b.w};
    MmaHalves(scores, rows, {E4m3Pair(words.of[i], 0), E4m3Pair(words.of[i], 1)});
  }
  const uint32_t scales = *reinterpret_cast<const uint32_t*>(step.k_scales + first + 2 * p);
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    scores[i] =
        codecs::Multiply(scores[i], HalfToFloat(i % 2 == 0 ? scales & 0xFFFF : scales >> 16));
  }
}

// Adds the outputs of 16 tokens; `first` is the first of them. `weights` has the weights of the
// first 8 tokens and then of the other 8.
template <uint32_t kDim>
CAIRN_DEVICE void AddFp8(const Fp8Step<kDim>& step, uint32_t first, const float (&weights)[2][4],
                         NanFinder* nans, LaneSums<kDim / kAttendVGroup>* sums) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, g = lane / 4, p = lane % 4;
  uint32_t pairs[4], scaled[4];
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    pairs[i] = PackFp16(weights[i / 2][i % 2 * 2], weights[i / 2][i % 2 * 2 + 1]);
    const auto scales =
        *reinterpret_cast<const uint32_t*>(step.v_scales + first + 8 * (i / 2) + 2 * p);
    scaled[i] = MultiplyHalves(pairs[i], scales);
  }
  const uint32_t ones = g == 7 ? 0x3C003C00U : 0;
  MmaHalves(sums->extras, pairs, {ones, ones});
  CAIRN_UNROLL
  for (uint32_t group = 0; group < kDim / kAttendVGroup; ++group) {
    const ValuePairs<8> a(step, first, group), b(step, first + 8, group);
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      nans->Look(a.of[i]);
      nans->Look(b.of[i]);
    }
    CAIRN_UNROLL
    for (uint32_t j = 0; j < 8; ++j) {
      MmaHalves(sums->outputs[group][j], scaled,
                {E4m3Pair(a.of[j / 2], j % 2), E4m3Pair(b.of[j / 2], j % 2)});
    }
  }
}

// Computes a warp's sums over a work item.
template <uint32_t kDim>
CAIRN_DEVICE void SumFp8(const AttendArgs& args, const AttendReader& reader, const AttendWork& work,
                         Fp8AttendShared<kDim>* shared, LaneSums<kDim / kAttendVGroup>* sums) {
  constexpr uint32_t kOfRow = kDim / 32;
  U32x4 queries[2][kOfRow];
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 2 * kOfRow; ++i) {
    const uint32_t half = i / kOfRow;
    queries[half][i % kOfRow] = shared->queries[half][i % kOfRow][ThreadIndex() % kWarpLanes];
  }
  ForEachStep(args, reader, work, shared, [&](Fp8Step<kDim>& step, Fault* fault) {
    const uint32_t tokens = Uniform(step.tokens);
    CheckScales(tokens, &step, fault);
    NanFinder nans;
    float scores[4][4];
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) ScoreFp8(step, 8 * i, queries, &nans, scores[i]);
    WeighTokens(shared->factors, tokens, scores, sums);
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; i += 2) {
      const float weights[2][4] = {
          {scores[i][0], scores[i][1], scores[i][2], scores[i][3]},
          {scores[i + 1][0], scores[i + 1][1], scores[i + 1][2], scores[i + 1][3]}};
      AddFp8(step, 8 * i, weights, &nans, sums);
    }
    if (nans.HasFound()) *fault = Worse(*fault, Fault::kBadTile);
  });
}

template <uint32_t kDim>
CAIRN_KERNEL CAIRN_BOUNDS(kAttendThreads, 2) AttendFp8(AttendArgs args) {
  CAIRN_SHARED(Fp8AttendShared<kDim>, shared);
  const AttendReader reader(args.plan, AttendFp8List(kDim));
  for (uint32_t i = BlockIndex(); i < reader.WorkCount(); i += GridBlocks()) {
    const AttendWork work = reader.Work(i);
    LayOutQueries(reader, work, kE4m3Unit, &shared);
    SyncBlock();
    LaneSums<kDim / kAttendVGroup> sums{};
    sums.largest[0] = sums.largest[1] = kNoScore;
    SumFp8<kDim>(args, reader, work, &shared, &sums);
    SyncBlock();  // outputs are stored where steps were
    LeaveSums(
        sums, [](uint32_t) { return kE4m3Unit; }, &shared);
    SyncBlock();
    JoinWarps(reader.SlotFloats(), shared, RowCount(reader.Queries(work.queries), work),
              SlotOf(args, reader.SlotFloats(), work.slot));
    SyncBlock();  // shared memory is reused for the next work
  }
}

}  // namespace cairn::kernels
