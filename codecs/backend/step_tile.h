// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameters with which the recipe `cairn` codes one (layer, head, plane). They are computed
// from a profile, a multiplier and a level. They are plain values and borrowed pointers, without
// the standard library, so that hosts and devices can use them. A StepTile takes 18 KiB; a coder
// makes one for each tile.
//
// Thread-safety: a value; functions are Thread-safe. Nothing allocates.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/numbers/static_step.h"
#include "codecs/pack/lanes32.h"
#include "codecs/pack/lanes32_lookup.h"
#include "codecs/side/profile_channel.h"
#include "codecs/types/dtype.h"

namespace cairn::codecs {

// Scales the quantizer steps of a block. Each step is that of the profile times 2^(multiplier /
// 256) times 3^level.
struct StepRate {
  int16_t multiplier = 0;  // at most kProfileMultiplierMax in magnitude
  uint8_t level = 0;       // at most kStepLevelMax
};

struct StepChannel {
  float mean;
  float step;
  float step_inverse;  // 1 / step, at level 0
  StepShape shape;
};

CAIRN_HD StepChannel StepChannelOf(const ProfileChannel& known, StepRate rate) {
  constexpr int32_t kLogOf3 = 406;  // 256 * log2(3), to nearest
  const int32_t log = known.step_log + rate.multiplier;
  StepChannel channel;
  channel.mean = known.mean;
  channel.step = Multiply(Exp2(log), static_cast<float>(PowerOf3(rate.level)));
  channel.step_inverse = Exp2(-log);
  channel.shape = StepShapeOf(known.spread_log - log - kLogOf3 * rate.level);
  return channel;
}

// Channels that RoPE rotates in pairs. Pair i has two channels: first + step * i, and first + step
// * i + distance.
struct StepPairs {
  uint32_t count;  // 0 except in K
  uint32_t first;
  uint32_t step;
  uint32_t distance;
  const uint8_t* turns;  // a u64 per pair: its rotation per token, in 2^-64 turn;
                         // borrowed, at any alignment
};

// Sets turns[c] to whether RoPE rotates channel c of a tile of `dim` channels.
CAIRN_HD void MarkTurning(const StepPairs& pairs, uint32_t dim, bool* turns) {
  for (uint32_t c = 0; c < dim; ++c) turns[c] = false;
  for (uint32_t i = 0; i < pairs.count; ++i) {
    const uint32_t first = pairs.first + i * pairs.step;
    turns[first] = turns[first + pairs.distance] = true;
  }
}

// A basis: a scale for each channel, and fp16 vectors [channel][component]. Borrowed, at any
// alignment.
struct StepBasis {
  const uint8_t* scale;
  const uint8_t* scale_inverse;
  const uint8_t* vectors;
};

struct StepTile {
  ProfileHead at;
  uint32_t plane;
  uint32_t dim;
  uint32_t v_dim;  // dim of V of the same head
  uint32_t pairs;  // rotated pairs; 0 except in K
  bool has_basis;  // false except in K
  DType dtype;
  uint8_t level;
  uint32_t planes;  // the sum of the channels' numbers of low bits
  ProfileTables shared;
  StepPairs turning;
  StepBasis basis;  // REQUIRES: has_basis
  StepChannel channels[kProfileDimMax];
  uint16_t order[kProfileDimMax];  // the order in which channels are coded
};

CAIRN_HD const CoderTable& TableOf(const StepTile& tile, uint32_t channel) {
  return tile.shared.tables[tile.channels[channel].shape.table];
}
CAIRN_HD const float* OffsetsOf(const StepTile& tile, uint32_t channel) {
  const StepShape& shape = tile.channels[channel].shape;
  return tile.shared.offsets[shape.low_bits == 0 ? shape.table : kProfileTables];
}
// Returns the value of a code of a channel. The channel's mean is not included.
CAIRN_HD float ValueOf(const StepTile& tile, uint32_t channel, int32_t code) {
  return Multiply(StepCodeOf(code, OffsetsOf(tile, channel)), tile.channels[channel].step);
}

class Profile;

// REQUIRES: `at` and `plane` exist in the profile; `rate` is within its limits.
void MakeStepTile(const Profile& profile, ProfileHead at, uint32_t plane, StepRate rate,
                  DType dtype, StepTile* tile);

}  // namespace cairn::codecs
