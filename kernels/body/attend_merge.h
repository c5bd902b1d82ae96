// SPDX-License-Identifier: Apache-2.0
#pragma once
// Merges the results of all work items of a sequence. The outputs of a row are weighted by e^(log
// sum), as MergeAttention() of codecs/backend/reference/attention.h does. One warp per row of
// queries.

#include <cstdint>

#include "kernels/body/attend_tasks.h"

namespace cairn::kernels {

inline constexpr uint32_t kMergeChannels = 4;  // a lane merges this many at once

// Returns the largest of the `count` log sums that the work items stored for a row.
CAIRN_DEVICE float LargestLogSum(uint32_t slot_floats, float* slots, uint32_t count, uint32_t row) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  float largest = codecs::BitsFloat(kMinusInfinityBits);
  for (uint32_t i = lane; i < count; i += kWarpLanes) {
    float* slot = slots + static_cast<uint64_t>(i) * slot_floats;
    largest = Larger(largest, LoadGlobal<float>(LogSumsOf(slot_floats, slot) + row));
  }
  CAIRN_UNROLL
  for (uint32_t lanes = kWarpLanes / 2; lanes != 0; lanes /= 2) {
    largest = LargerAcross(largest, lanes);
  }
  return largest;
}

CAIRN_DEVICE void MergeRow(uint32_t slot_floats, float* slots, uint32_t count, uint32_t row,
                           const AttendQueries& queries, uint32_t query) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const float largest = LargestLogSum(slot_floats, slots, count, row);
  const bool is_empty = codecs::FloatBits(largest) == kMinusInfinityBits;
  float* output = queries.outputs + static_cast<uint64_t>(query) * queries.v_dim;
  float sum = 0.0F;  // sum of weights, the same in each round
  for (uint32_t first = 0; first < queries.v_dim; first += kMergeChannels * kWarpLanes) {
    float sums[kMergeChannels] = {};
    sum = 0.0F;
    for (uint32_t i = 0; i < count && !is_empty; ++i) {
      float* slot = slots + static_cast<uint64_t>(i) * slot_floats;
      const float log_sum = LoadGlobal<float>(LogSumsOf(slot_floats, slot) + row);
      const float weight = codecs::AttentionExp(codecs::Add(log_sum, -largest));
      sum = codecs::Add(sum, weight);
      CAIRN_UNROLL
      for (uint32_t k = 0; k < kMergeChannels; ++k) {
        const uint32_t channel = first + k * kWarpLanes + lane;
        if (channel >= queries.v_dim) continue;
        const float value = LoadGlobal<float>(slot + row * queries.v_dim + channel);
        sums[k] = codecs::Add(sums[k], codecs::Multiply(weight, value));
      }
    }
    CAIRN_UNROLL
    for (uint32_t k = 0; k < kMergeChannels; ++k) {
      const uint32_t channel = first + k * kWarpLanes + lane;
      if (channel >= queries.v_dim) continue;
      StoreGlobal(output + channel, is_empty ? 0.0F : codecs::Divide(sums[k], sum));
    }
  }
  if (lane != 0) return;
  StoreGlobal(queries.log_sums + query,
              is_empty ? largest : codecs::Add(largest, codecs::AttentionLog(sum)));
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) MergeAttended(AttendArgs args) {
  const AttendReader reader(args.plan, args.list);
  const uint32_t warp = WarpOfBlock();
  for (uint32_t i = BlockIndex(); i < reader.WorkCount(); i += GridBlocks()) {
    const AttendWork work = reader.Work(i);
    const AttendQueries queries = reader.Queries(work.queries);
    float* slots = SlotOf(args, reader.SlotFloats(), work.part_first);
    for (uint32_t row = warp; row < RowCount(queries, work); row += kBlockWarps) {
      MergeRow(reader.SlotFloats(), slots, work.part_count, row, queries,
               QueryOf(queries, work, row));
    }
  }
}

}  // namespace cairn::kernels
