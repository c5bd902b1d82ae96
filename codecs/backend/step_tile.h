// SPDX-License-Identifier: Apache-2.0
#pragma once
// One (layer, head, plane) as the recipe `cairn` codes it: what a profile, a multiplier and a level
// come to. Large: 18 KiB. A coder makes one for each tile.
//
// Thread-safety: a value; functions are Thread-safe. Nothing allocates.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/numbers/static_step.h"
#include "codecs/pack/lanes32.h"
#include "codecs/pack/lanes32_lookup.h"
#include "codecs/side/profile.h"
#include "codecs/types/dtype.h"

namespace cairn::codecs {

// Steps of a block: those of the profile, times 2^(multiplier / 256) and 3^level.
struct StepRate {
  int16_t multiplier = 0;  // at most kProfileMultiplierMax in magnitude
  uint8_t level = 0;       // at most kStepLevelMax
};

struct StepChannel {
  float mean;
  float step;
  float step_inverse;  // at level 0
  StepShape shape;
};

// Channels that turn together: pair i has first + step * i, and that + distance.
struct StepPairs {
  uint32_t count;  // 0 but in K
  uint32_t first;
  uint32_t step;
  uint32_t distance;
  const uint8_t* turns;  // u64 each, 2^-64 turn a token; borrowed, at any alignment
};

// turns[c]: whether channel c of a tile of `dim` does.
CAIRN_HD void MarkTurning(const StepPairs& pairs, uint32_t dim, bool* turns) {
  for (uint32_t c = 0; c < dim; ++c) turns[c] = false;
  for (uint32_t i = 0; i < pairs.count; ++i) {
    const uint32_t first = pairs.first + i * pairs.step;
    turns[first] = turns[first + pairs.distance] = true;
  }
}

// A basis, borrowed at any alignment: of channels, and [channel][component] of fp16.
struct StepBasis {
  const uint8_t* scale;
  const uint8_t* scale_inverse;
  const uint8_t* vectors;
};

struct StepTile {
  const Profile* profile;  // borrowed
  ProfileHead at;
  uint32_t plane;
  uint32_t dim;
  uint32_t v_dim;  // of V of the same head
  uint32_t pairs;  // that turn; 0 but in K
  bool has_basis;  // false but in K
  DType dtype;
  uint8_t level;
  uint32_t planes;             // low bits of all channels
  const CoderLookup* lookups;  // kProfileTables, borrowed from the profile
  bool has_exact_lookups;      // all of them
  StepPairs turning;
  StepBasis basis;  // REQUIRES: has_basis
  StepChannel channels[kProfileDimMax];
  uint16_t order[kProfileDimMax];  // of coding

  [[nodiscard]] const CoderTable& TableOf(uint32_t channel) const {
    return profile->Table(plane, channels[channel].shape.table);
  }
  [[nodiscard]] const float* OffsetsOf(uint32_t channel) const {
    const StepShape& shape = channels[channel].shape;
    return profile->Offsets(plane)[shape.low_bits == 0 ? shape.table : kProfileTables];
  }
  // What a code of a channel stands for, before the mean.
  [[nodiscard]] float ValueOf(uint32_t channel, int32_t code) const {
    return Multiply(StepCodeOf(code, OffsetsOf(channel)), channels[channel].step);
  }
};

// REQUIRES: `at` and `plane` are the profile's, `rate` keeps its limits.
void MakeStepTile(const Profile& profile, ProfileHead at, uint32_t plane, StepRate rate,
                  DType dtype, StepTile* tile);

}  // namespace cairn::codecs
