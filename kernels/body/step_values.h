// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts the codes of a token to values with a profile, as codecs/backend/step_token.h does:
// reverses the basis, adds the means, and applies RoPE at the token's position. One warp per token.

#include <cstdint>

#include "codecs/backend/step_tile.h"
#include "codecs/numbers/static_step.h"
#include "codecs/side/profile_channel.h"
#include "kernels/body/affine_decode.h"

namespace cairn::kernels {

// The values of a token without means, in shared memory.
struct CentredToken {
  float of[codecs::kProfileDimMax];
};

CAIRN_DEVICE codecs::ProfileChannel LoadChannel(const PlaneRecord& plane, uint32_t head,
                                                uint32_t channel) {
  const uint64_t index = static_cast<uint64_t>(head) * plane.dim + channel;
  const auto entry = LoadGlobal<U32x2>(plane.side + codecs::kProfileChannelBytes * index);
  return {codecs::BitsFloat(entry.x), static_cast<int16_t>(entry.y & 0xFFFF),
          static_cast<int16_t>(entry.y >> 16)};
}

CAIRN_DEVICE codecs::StepChannel LoadStep(const PlaneRecord& plane, uint32_t head,
                                          uint32_t channel) {
  return codecs::StepChannelOf(LoadChannel(plane, head, channel), {plane.multiplier, plane.level});
}

// Returns a channel by its index in this order: first the channels that RoPE rotates, pair by pair,
// then the others.
CAIRN_DEVICE uint32_t ChannelInPairs(const PlaneRecord& plane, uint32_t index) {
  const TurningPairs& pairs = plane.pairs;
  if (index < 2 * pairs.count) {
    return pairs.first + index / 2 * pairs.step + index % 2 * pairs.distance;
  }
  const uint32_t other = index - 2 * pairs.count;
  return other < pairs.first ? other : index;
}

// Returns the value of a channel before RoPE.
CAIRN_DEVICE float ValueBeforeTurn(const PlaneRecord& plane, uint32_t head, uint32_t channel,
                                   const CentredToken& centred) {
  float value = centred.of[channel];
  if (plane.vectors != nullptr) {
    const uint64_t row = static_cast<uint64_t>(head) * plane.dim + channel;
    const uint8_t* vector = plane.vectors + 2 * row * plane.dim;
    value = codecs::BasisSum(plane.dim, centred.of, [&](uint32_t i) {
      return HalfToFloat(LoadGlobal<uint16_t>(vector + 2 * i));
    });
    const auto inverse = LoadGlobal<uint32_t>(plane.scale_inverses + 4 * row);
    value = codecs::Multiply(value, codecs::BitsFloat(inverse));
  }
  return codecs::Add(value, LoadChannel(plane, head, channel).mean);
}

// Applies RoPE to a token and stores it, with one warp. REQUIRES: the warp has synchronized since
// it wrote the values of the token.
CAIRN_DEVICE void StoreTurned(const PlaneRecord& plane, uint32_t head, uint32_t token,
                              const CentredToken& centred, uint8_t* place) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, pairs = plane.pairs.count;
  for (uint32_t pair = lane; pair < pairs; pair += kWarpLanes) {
    const uint32_t first = ChannelInPairs(plane, 2 * pair);
    const uint32_t second = ChannelInPairs(plane, 2 * pair + 1);
    const codecs::Rotation by = codecs::RotationAt(
        LoadGlobal<uint64_t>(plane.pairs.turns + 8 * pair), plane.first_position + token);
    const codecs::Pair turned = codecs::ApplyRope({ValueBeforeTurn(plane, head, first, centred),
                                                   ValueBeforeTurn(plane, head, second, centred)},
                                                  by);
    StoreValue(plane.dtype, place, first, turned.first);
    StoreValue(plane.dtype, place, second, turned.second);
  }
  for (uint32_t index = 2 * pairs + lane; index < plane.dim; index += kWarpLanes) {
    const uint32_t channel = ChannelInPairs(plane, index);
    StoreValue(plane.dtype, place, channel, ValueBeforeTurn(plane, head, channel, centred));
  }
}

}  // namespace cairn::kernels
