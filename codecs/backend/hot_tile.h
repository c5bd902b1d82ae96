// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameters with which the recipe `cairn-hot` codes one (layer, head, plane). They are
// computed from a profile and a multiplier. A HotTile takes 40 KiB; a coder makes one for each
// tile.
//
// Thread-safety: values; functions are Thread-safe. Nothing allocates.

#include <cstdint>

#include "codecs/backend/step_tile.h"
#include "codecs/numbers/hot_levels.h"

namespace cairn::codecs {

inline constexpr uint32_t kHotTokensMin = 16;  // a tile with fewer tokens is stored raw

struct HotChannel {
  int16_t spread_log;   // 256 * log2 of the spread
  uint8_t width;        // bits of a code
  uint32_t bit_offset;  // bit offset in the codes of a token
};

struct HotTile {
  StepTile step;       // mean, RoPE and basis
  uint32_t row_bytes;  // size of a token's codes
  bool is_corrected;   // K and latents: each strip has its own scales
  HotChannel channels[kProfileDimMax];
};

// Returns how much one bit of a channel is worth, for HotWidth().
CAIRN_HD int32_t WorthOf(const ProfileChannel& channel, int32_t multiplier) {
  return channel.spread_log - channel.step_log - multiplier;
}

// REQUIRES: `at` and `plane` exist in the profile; |multiplier| <= kProfileMultiplierMax.
void MakeHotTile(const Profile& profile, ProfileHead at, uint32_t plane, int16_t multiplier,
                 DType dtype, HotTile* tile);

// Returns the size of the corrections of a strip, which has a nibble for each channel.
CAIRN_HD constexpr uint32_t HotCorrectionBytes(uint32_t dim) { return (dim + 1) / 2; }

// Returns the correction of a channel, or 0 if the tile has no corrections.
CAIRN_HD int32_t HotCorrectionAt(const HotTile& tile, const uint8_t* corrections,
                                 uint32_t channel) {
  if (!tile.is_corrected) return 0;
  return static_cast<int32_t>(corrections[channel / 2] >> (4 * (channel % 2)) & 0xF) +
         kHotCorrectionMin;
}

}  // namespace cairn::codecs
