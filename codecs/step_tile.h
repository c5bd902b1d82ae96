// SPDX-License-Identifier: Apache-2.0
#pragma once
// One (layer, head, plane) as the recipe `cairn` codes it: what a profile, a multiplier and a level
// come to. Large: 24 KiB. A coder makes one for each tile.
//
// Thread-safety: a value; functions are Thread-safe. Nothing allocates.

#include <cstdint>

#include "codecs/dtype.h"
#include "codecs/pack/lanes32.h"
#include "codecs/profile.h"
#include "codecs/static_step.h"

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
  float offsets[2];    // of the codes of magnitude 1 and 2; 0 where there are low bits
  StepShape shape;
};

struct StepTile {
  const Profile* profile;  // borrowed
  ProfileHead at;
  uint32_t plane;
  uint32_t dim;
  uint32_t pairs;  // that turn; 0 but in K
  bool has_basis;  // false but in K
  DType dtype;
  uint8_t level;
  uint32_t planes;  // low bits of all channels
  StepChannel channels[kProfileDimMax];
  uint16_t order[kProfileDimMax];  // of coding

  [[nodiscard]] const CoderTable& TableOf(uint32_t channel) const {
    return profile->Table(plane, channels[channel].shape.table);
  }
};

// REQUIRES: `at` and `plane` are the profile's, `rate` keeps its limits.
void MakeStepTile(const Profile& profile, ProfileHead at, uint32_t plane, StepRate rate,
                  DType dtype, StepTile* tile);

}  // namespace cairn::codecs
