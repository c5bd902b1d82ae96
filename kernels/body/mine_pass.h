// SPDX-License-Identifier: Apache-2.0
#pragma once
// Code that the passes over the sample of a profile share. The passes compute the sums that
// codecs/mine/profile_miner.cc computes over strips, with one thread block per head. First, one
// warp per token decides whether the token counts. Then each warp processes two channels at a time,
// with one token per lane. Accepts every shape and dtype.

#include <cstddef>
#include <cstdint>

#include "codecs/side/profile_sums.h"
#include "kernels/body/centre.h"
#include "kernels/mine_pass_records.h"

namespace cairn::kernels {

inline constexpr uint32_t kMarkedTokens = kTaskTokensMax / kBlockWarps;  // per warp

// A thread block's data about its head and strip, in shared memory.
struct PassShared {
  PlaneRecord plane;
  MinePassTask task;
  SampleStrip strip;
  uint16_t kept[kBlockWarps];  // one bit per token of the strip: whether it counts

  // REQUIRES: token < kTaskTokensMax. Returns false for tokens after the end of the strip.
  CAIRN_DEVICE_MEMBER bool IsKept(uint32_t token) const {
    return (kept[token / kMarkedTokens] >> token % kMarkedTokens & 1) != 0;
  }
  CAIRN_DEVICE_MEMBER const uint8_t* Row(uint32_t token, Fault* fault) const {
    return PlaceOf(plane, task.source, strip.token_first + token, fault);
  }
};

// Joins the sums of the lanes of a warp. All lanes return the result.
//   join(sum, other)  adds `other` to *sum
template <typename Sum, typename Join>
CAIRN_DEVICE Sum SumOfWarp(Sum sum, Join join) {
  struct Words {
    uint32_t of[sizeof(Sum) / sizeof(uint32_t)];
  };
  CAIRN_NO_UNROLL
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    auto words = __builtin_bit_cast(Words, sum);
    CAIRN_UNROLL
    for (uint32_t& word : words.of) word = ShuffleXor(word, lanes);
    join(&sum, __builtin_bit_cast(Sum, words));
  }
  return sum;
}

// Marks those of the warp's tokens that count. The block must synchronize before it reads the
// marks.
CAIRN_DEVICE void MarkKept(PassShared* shared, bool is_strided, Fault* fault) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const uint32_t warp = WarpOfBlock();
  uint32_t marks = 0;
  CAIRN_NO_UNROLL
  for (uint32_t i = 0; i < kMarkedTokens; ++i) {
    const uint32_t token = warp * kMarkedTokens + i;
    if (token >= shared->strip.tokens) break;
    const uint64_t position = shared->strip.first_position + token;
    const uint8_t* row = shared->Row(token, fault);
    if (position < codecs::kTokensSkipped || (is_strided && position % codecs::kFindStride != 0)) {
      continue;
    }
    bool is_left_out = row == nullptr;
    CAIRN_NO_UNROLL
    for (uint32_t c = lane; row != nullptr && c < shared->plane.dim; c += kWarpLanes) {
      is_left_out |= codecs::IsRowValue(LoadValue(shared->plane.dtype, row, c));
    }
    marks |= Any(is_left_out) ? 0 : 1U << i;
  }
  if (lane == 0) shared->kept[warp] = static_cast<uint16_t>(marks);
}

// Calls work() for each strip of the task. Synchronizes the block after each. REQUIRES: SyncBlock()
// before.
template <typename Work>
CAIRN_DEVICE Fault ForEachStrip(const MinePassArgs& args, const MinePassHeader& header,
                                PassShared* shared, bool is_strided, Work work) {
  CAIRN_NO_UNROLL
  for (uint32_t i = 0; i < header.strip_count; ++i) {
    if (ThreadIndex() == 0) {
      shared->strip =
          LoadGlobal<SampleStrip>(args.plan + header.strips_at + i * sizeof(SampleStrip));
    }
    SyncBlock();
    Fault fault = Fault::kNone;
    MarkKept(shared, is_strided, &fault);
    if (SyncBlockOr(fault != Fault::kNone)) return fault;
    work();
    SyncBlock();  // strip and marks are reused for the next
  }
  return Fault::kNone;
}

// Starts a task. Uses one thread.
CAIRN_DEVICE void OpenTask(const MinePassArgs& args, const MinePassHeader& header, uint32_t index,
                           PassShared* shared) {
  shared->task =
      LoadRecord<MinePassTask>(args.plan + header.tasks_at + index * sizeof(MinePassTask));
  shared->plane = LoadRecord<PlaneRecord>(args.plan + header.planes_at +
                                          shared->task.plane * sizeof(PlaneRecord));
  shared->plane.pairs.turns = args.plan + header.turns_at;
}

// Two channels that RoPE rotates together, or two other channels. The last channel may be alone.
struct ChannelsOfWarp {
  uint32_t first, second;
  bool has_second;
  bool is_pair;
  uint64_t turns;
};

CAIRN_DEVICE ChannelsOfWarp ChannelsAt(const PlaneRecord& plane, uint32_t index) {
  ChannelsOfWarp at{};
  at.first = ChannelInPairs(plane, 2 * index);
  at.has_second = 2 * index + 1 < plane.dim;
  at.second = at.has_second ? ChannelInPairs(plane, 2 * index + 1) : at.first;
  at.is_pair = index < plane.pairs.count;
  at.turns = at.is_pair ? LoadGlobal<uint64_t>(plane.pairs.turns + 8 * index) : 0;
  return at;
}

// Returns the values of both channels before RoPE. REQUIRES: the token counts.
CAIRN_DEVICE codecs::Pair LoadChannels(const PassShared& shared, const ChannelsOfWarp& at,
                                       uint32_t token) {
  Fault fault = Fault::kNone;
  const uint8_t* row = shared.Row(token, &fault);
  const codecs::Pair values = {LoadValue(shared.plane.dtype, row, at.first),
                               LoadValue(shared.plane.dtype, row, at.second)};
  if (!at.is_pair) return values;
  return codecs::RemoveRope(values,
                            codecs::RotationAt(at.turns, shared.strip.first_position + token));
}

}  // namespace cairn::kernels
