// SPDX-License-Identifier: Apache-2.0
#pragma once
// The first steps of encoding with a profile. Finds the tokens of V that are stored as source
// elements because their norm is small. Reverses RoPE, subtracts the means, and applies the basis.
// codecs/backend/step_token.h and small_norm.h do the same on a CPU. One warp per strip or per
// token.

#include <cstdint>

#include "codecs/backend/reference/small_norm.h"
#include "kernels/body/encode_tasks.h"
#include "kernels/body/step_values.h"
#include "kernels/body/token_norms.h"

namespace cairn::kernels {

// Marks the tokens of a strip whose norm is among the smallest of the strip and far below the other
// norms. The warp must synchronize between writing `norms` and this call, and again before it reads
// the marks.
//   norms   one per token, in shared memory
//   is_row  the marks of the strip, in shared memory
CAIRN_DEVICE void MarkSmallest(uint32_t tokens, const float* norms, uint32_t* is_row) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  uint32_t middle = 0, small = 0;  // bits of the middle norm; one bit per token of the lane
  for (uint32_t at = lane; at < tokens; at += kWarpLanes) {
    uint32_t rank = 0;
    for (uint32_t other = 0; other < tokens; ++other) {
      const bool is_before = norms[other] < norms[at] || (norms[other] == norms[at] && other < at);
      rank += is_before ? 1 : 0;
    }
    if (rank == tokens / 2) middle = codecs::FloatBits(norms[at]);
    if (rank < codecs::kSmallNormsMax) small |= 1U << at / kWarpLanes;
  }
  const float limit = codecs::Multiply(codecs::kSmallNorm, codecs::BitsFloat(ReduceOr(middle)));
  for (uint32_t at = lane; at < tokens; at += kWarpLanes) {
    if ((small >> at / kWarpLanes & 1) == 0 || !(norms[at] < limit)) continue;
    AtomicOrShared(&is_row[at / kWarpLanes], 1U << lane);
  }
}

// Computes the norms of the tokens of V, and then does the same as MarkSmallest().
//   v       the tile of V
//   norms   room for kStripTokens norms, in shared memory of the warp
CAIRN_DEVICE void MarkSmallNorms(const PlaneRecord& v, uint8_t* source, uint32_t token_first,
                                 uint32_t tokens, float* norms, uint32_t* is_row, Fault* fault) {
  FindNorms(
      v, source, token_first, tokens, [](float value) { return codecs::Multiply(value, value); },
      norms, fault);
  SyncWarp();
  MarkSmallest(tokens, norms, is_row);
}

// Marks those rows of a strip that can be found before the tile is encoded. The warp must
// synchronize before it reads the marks.
//   tile  index of the tile
CAIRN_DEVICE void SelectStepRows(const EncodeReader& reader, uint32_t tile, const EncodeTask& task,
                                 const PlaneRecord& plane, const codecs::StripShape& shape,
                                 uint32_t token_first, float* norms, uint32_t* is_row,
                                 Fault* fault) {
  if (ThreadIndex() % kWarpLanes == 0 && token_first == 0 && (task.rules & kRuleFirstIsRow) != 0) {
    AtomicOrShared(is_row, 1);
  }
  if ((task.rules & kRuleSmallNorms) == 0) return;
  const EncodeTask v = plane.is_v ? task : reader.Task(tile + 1);
  MarkSmallNorms(reader.Plane(v.plane), v.source, token_first, shape.tokens, norms, is_row, fault);
}

// Subtracts the mean of a channel from its value. The result is the input of the basis, or is coded
// if there is no basis.
CAIRN_DEVICE float WithoutMean(const PlaneRecord& plane, uint32_t head, uint32_t channel,
                               float value) {
  value = codecs::Add(value, -LoadChannel(plane, head, channel).mean);
  if (plane.vectors == nullptr) return value;
  const uint64_t index = static_cast<uint64_t>(head) * plane.dim + channel;
  const auto scale = LoadGlobal<uint32_t>(plane.scales + 4 * index);
  return codecs::Multiply(value, codecs::BitsFloat(scale));
}

// Computes WithoutMean() for all channels of a token, with one warp, and stores the results in
// *centred. The warp must synchronize before it reads them. Returns true in lanes that have found a
// value that cannot be coded.
CAIRN_DEVICE bool CentreSource(const PlaneRecord& plane, uint32_t head, uint32_t token,
                               const uint8_t* row, CentredToken* centred) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, pairs = plane.pairs.count;
  bool is_uncodable = false;
  const auto load = [&](uint32_t channel) {
    const float value = LoadValue(plane.dtype, row, channel);
    is_uncodable |= codecs::IsRowValue(value);
    return value;
  };
  for (uint32_t pair = lane; pair < pairs; pair += kWarpLanes) {
    const uint32_t first = ChannelInPairs(plane, 2 * pair);
    const uint32_t second = ChannelInPairs(plane, 2 * pair + 1);
    const codecs::Rotation by = codecs::RotationAt(
        LoadGlobal<uint64_t>(plane.pairs.turns + 8 * pair), plane.first_position + token);
    const codecs::Pair turned = codecs::RemoveRope({load(first), load(second)}, by);
    centred->of[first] = WithoutMean(plane, head, first, turned.first);
    centred->of[second] = WithoutMean(plane, head, second, turned.second);
  }
  for (uint32_t index = 2 * pairs + lane; index < plane.dim; index += kWarpLanes) {
    const uint32_t channel = ChannelInPairs(plane, index);
    centred->of[channel] = WithoutMean(plane, head, channel, load(channel));
  }
  return is_uncodable;
}

// Returns the value that is coded for a channel, or for a component of the basis.
CAIRN_DEVICE float CentredValue(const PlaneRecord& plane, uint32_t head, uint32_t component,
                                const CentredToken& centred) {
  if (plane.vectors == nullptr) return centred.of[component];
  const uint64_t first = static_cast<uint64_t>(head) * plane.dim * plane.dim + component;
  return codecs::BasisSum(plane.dim, centred.of, [&](uint32_t c) {
    const uint64_t at = first + static_cast<uint64_t>(c) * plane.dim;
    return HalfToFloat(LoadGlobal<uint16_t>(plane.vectors + 2 * at));
  });
}

}  // namespace cairn::kernels
