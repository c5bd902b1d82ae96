// SPDX-License-Identifier: Apache-2.0
#pragma once
// The mining pass that computes moments: the sums of values and of their squares, for each channel
// and each part of the sample. It also counts the tokens of each head, and the tokens of V with a
// small norm.

#include <cstddef>
#include <cstdint>

#include "kernels/body/centre.h"
#include "kernels/body/mine_pass.h"

namespace cairn::kernels {

struct MomentsShared {
  PassShared pass;
  float norms[kTaskTokensMax];
  uint32_t is_small[kTaskTokensMax / 32];
};

CAIRN_DEVICE void AddTo(uint8_t* at, const codecs::ExactMoments& more) {
  auto sums = LoadRecord<codecs::ExactMoments>(at);
  sums.Add(more);
  StoreGlobal(at, sums.sum);
  StoreGlobal(at + sizeof(sums.sum), sums.squares);
}

// A channel always belongs to the same warp. So its sums need no atomic additions.
CAIRN_DEVICE void AddMoments(const PassShared& shared, uint8_t* moments) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const uint64_t channel_first = static_cast<uint64_t>(shared.task.number) * shared.plane.dim;
  const auto join = [](codecs::ExactMoments* sum, const codecs::ExactMoments& other) {
    sum->Add(other);
  };
  CAIRN_NO_UNROLL
  for (uint32_t index = WarpOfBlock(); 2 * index < shared.plane.dim; index += kBlockWarps) {
    const ChannelsOfWarp at = ChannelsAt(shared.plane, index);
    codecs::ExactMoments first, second;
    CAIRN_NO_UNROLL
    for (uint32_t token = lane; token < shared.strip.tokens; token += kWarpLanes) {
      if (!shared.IsKept(token)) continue;
      const codecs::Pair values = LoadChannels(shared, at, token);
      first.Add(values.first);
      second.Add(values.second);
    }
    first = SumOfWarp(first, join);
    second = SumOfWarp(second, join);
    if (lane > (at.has_second ? 1U : 0U)) continue;
    const uint64_t channel = channel_first + (lane == 0 ? at.first : at.second);
    AddTo(moments +
              (channel * codecs::kSampleParts + shared.strip.part) * sizeof(codecs::ExactMoments),
          lane == 0 ? first : second);
  }
}

// Adds the number of tokens. Uses one thread.
CAIRN_DEVICE void AddTokens(const PassShared& shared, uint8_t* tokens) {
  uint8_t* at = tokens + shared.task.number * sizeof(codecs::HeadTokens);
  auto sums = LoadRecord<codecs::HeadTokens>(at);
  uint32_t count = 0;
  for (const uint16_t marks : shared.kept) count += CountBits(marks);
  ++sums.strips;
  StoreGlobal(at + offsetof(codecs::HeadTokens, strips), sums.strips);
  CAIRN_UNROLL
  for (uint32_t part = 0; part < codecs::kSampleParts; ++part) {
    if (part == shared.strip.part) StoreGlobal(at + 8 * part, sums.of[part] + count);
  }
}

// Adds the counts of small norms, for V. Uses one warp.
CAIRN_DEVICE void AddSmallNorms(MomentsShared* shared, NormCounts* counts) {
  const PassShared& pass = shared->pass;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  Fault hole = Fault::kNone;
  if (lane < kTaskTokensMax / 32) shared->is_small[lane] = 0;
  FindNorms(
      pass.plane, pass.task.source, pass.strip.token_first, pass.strip.tokens,
      [](float value) { return codecs::Multiply(value, value); }, shared->norms, &hole);
  SyncWarp();
  CAIRN_NO_UNROLL
  for (uint32_t token = lane; token < pass.strip.tokens; token += kWarpLanes) {
    if (pass.Row(token, &hole) != nullptr) continue;
    shared->norms[token] = codecs::BitsFloat(codecs::kInfinityBits);
  }
  SyncWarp();
  MarkSmallest(pass.strip.tokens, shared->norms, shared->is_small);
  SyncWarp();
  const uint64_t first = pass.strip.first_position;
  const auto skipped =
      static_cast<uint32_t>(first < codecs::kTokensSkipped ? codecs::kTokensSkipped - first : 0);
  if (lane != 0 || pass.strip.tokens <= skipped) return;
  uint32_t small = CountBits(shared->is_small[0] >> skipped);
  for (uint32_t i = 1; i < kTaskTokensMax / 32; ++i) small += CountBits(shared->is_small[i]);
  AtomicAdd(&counts->norms, pass.strip.tokens - skipped);
  AtomicAdd(&counts->small_norms, small);
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 3) SumMoments(MinePassArgs args) {
  CAIRN_SHARED(MomentsShared, shared);
  const auto header = LoadRecord<MinePassHeader>(args.plan);
  const TaskList list = header.lists[static_cast<uint32_t>(PassList::kMoments)];
  for (uint32_t index = BlockIndex(); index < list.count; index += GridBlocks()) {
    if (ThreadIndex() == 0) OpenTask(args, header, list.first + index, &shared.pass);
    SyncBlock();
    const bool is_v = shared.pass.task.plane == 1;
    const PassPlane sums = is_v ? header.sums[1] : header.sums[0];
    const Fault fault = ForEachStrip(args, header, &shared.pass, false, [&] {
      if (ThreadIndex() == 0) AddTokens(shared.pass, args.sums + sums.tokens_at);
      AddMoments(shared.pass, args.sums + sums.moments_at);
      if (is_v && WarpOfBlock() == kBlockWarps - 1) {
        AddSmallNorms(&shared, reinterpret_cast<NormCounts*>(args.sums));
      }
    });
    ReportFault(fault, shared.pass.plane, args.status);
    SyncBlock();  // shared memory is reused for the next head
  }
}

}  // namespace cairn::kernels
