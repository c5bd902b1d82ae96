// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sums that a warp keeps while it computes attention. They are for 16 rows of queries by 64 or
// 128 channels, over the tokens that the warp has processed. Each warp has its own sums, and the
// block joins them at the end of a work item. Lane 4 g + p (p is 0 to 3) has the rows g and g + 8.

#include <cstdint>

#include "kernels/body/attend_tasks.h"

namespace cairn::kernels {

inline constexpr uint32_t kAttendWarps = kAttendThreads / kWarpLanes;
inline constexpr uint32_t kStepTokens = 32;  // tokens that a warp processes at once
inline constexpr uint32_t kAttendVGroups = kAttendDim / kAttendVGroup;

// A lane's part of its warp's sums.
template <uint32_t kGroups>
struct LaneSums {
  float outputs[kGroups][8][4];  // for code j of lane g: the rows g and g + 8, by column
  float extras[4];               // columns 0, 1: sums of min per V group; 7: sum of weights
  float largest[2];              // largest scores so far of the rows g and g + 8
};
using AffineSums = LaneSums<kAttendVGroups>;

// Converts the scores of 32 tokens to weights. Scales the sums to the new largest score.
template <uint32_t kGroups>
CAIRN_DEVICE void WeighTokens(const float* factors, uint32_t tokens, float (&scores)[4][4],
                              LaneSums<kGroups>* sums) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, g = lane / 4, p = lane % 4;
  const float by[2] = {factors[g], factors[g + 8]};
  if (tokens < kStepTokens) {
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 16; ++i) {
      if (8 * (i / 4) + 2 * p + i % 2 >= tokens) {
        scores[i / 4][i % 4] = codecs::BitsFloat(kMinusInfinityBits);
      }
    }
  }
  float largest[2];
  CAIRN_UNROLL
  for (uint32_t row = 0; row < 2; ++row) {
    largest[row] = Larger(scores[0][2 * row], scores[0][2 * row + 1]);
    CAIRN_UNROLL
    for (uint32_t i = 1; i < 4; ++i) {
      largest[row] = Larger(largest[row], Larger(scores[i][2 * row], scores[i][2 * row + 1]));
    }
    largest[row] = LargerAcross(LargerAcross(largest[row], 1), 2);
    largest[row] = Larger(codecs::Multiply(largest[row], by[row]), sums->largest[row]);
  }
  if (Any(largest[0] > sums->largest[0] || largest[1] > sums->largest[1])) {
    const float shrink[2] = {Exp2Near(codecs::Add(sums->largest[0], -largest[0])),
                             Exp2Near(codecs::Add(sums->largest[1], -largest[1]))};
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 32 * kGroups; ++i) {
      float& sum = sums->outputs[i / 32][i / 4 % 8][i % 4];
      sum = codecs::Multiply(sum, shrink[i % 4 / 2]);
    }
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      sums->extras[i] = codecs::Multiply(sums->extras[i], shrink[i / 2]);
    }
    sums->largest[0] = largest[0];
    sums->largest[1] = largest[1];
  }
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 16; ++i) {
    float& score = scores[i / 4][i % 4];
    score = Exp2Near(FusedMultiplyAdd(score, by[i % 4 / 2], -sums->largest[i % 4 / 2]));
  }
}

// Stores a warp's sums in shared memory, where the block joins them.
//   unit_of(j)  returns the factor for the outputs of channel j of eight
template <uint32_t kGroups, typename Shared, typename UnitOf>
CAIRN_DEVICE void LeaveSums(const LaneSums<kGroups>& sums, UnitOf unit_of, Shared* shared) {
  const uint32_t warp = WarpOfBlock(), lane = ThreadIndex() % kWarpLanes, g = lane / 4,
                 p = lane % 4;
  CAIRN_UNROLL
  for (uint32_t row = 0; row < 2; ++row) {
    const float weights = ShuffleFloat(sums.extras[2 * row + 1], 4 * g + 3);
    const float mins[2] = {ShuffleFloat(sums.extras[2 * row], 4 * g),
                           ShuffleFloat(sums.extras[2 * row + 1], 4 * g)};
    if (p == 0) {
      shared->largest[warp][g + 8 * row] = sums.largest[row];
      shared->sums[warp][g + 8 * row] = weights;
    }
    float* outputs = shared->outputs[warp][g + 8 * row];
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 16 * kGroups; ++i) {
      const uint32_t group = i / 16, j = i / 2 % 8, column = i % 2;
      outputs[kAttendVGroup * group + 8 * (2 * p + column) + j] = codecs::Add(
          codecs::Multiply(sums.outputs[group][j][2 * row + column], unit_of(j)), mins[group]);
    }
  }
}

// Joins the sums of the warps. Stores the result, which MergeAttended reads.
template <typename Shared>
CAIRN_DEVICE void JoinWarps(uint32_t slot_floats, const Shared& shared, uint32_t rows,
                            float* slot) {
  constexpr uint32_t kDim = sizeof(shared.outputs[0][0]) / sizeof(float);
  if (kDim < kAttendThreads && ThreadIndex() >= kDim) return;
  for (uint32_t row = 0; row < rows; ++row) {
    float largest = shared.largest[0][row];
    for (uint32_t i = 1; i < kAttendWarps; ++i) largest = Larger(largest, shared.largest[i][row]);
    float output = 0.0F, sum = 0.0F;
    for (uint32_t i = 0; i < kAttendWarps; ++i) {
      const float factor = Exp2Near(codecs::Add(shared.largest[i][row], -largest));
      sum = FusedMultiplyAdd(factor, shared.sums[i][row], sum);
      output = FusedMultiplyAdd(factor, shared.outputs[i][row][ThreadIndex()], output);
    }
    StoreGlobal(slot + row * kDim + ThreadIndex(),
                sum == 0.0F ? 0.0F : codecs::Divide(output, sum));
    if (ThreadIndex() == 0) StoreGlobal(LogSumsOf(slot_floats, slot) + row, LogSumOf(largest, sum));
  }
}

}  // namespace cairn::kernels
