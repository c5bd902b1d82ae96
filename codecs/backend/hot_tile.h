// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameters with which the recipe `cairn-hot` codes one (layer, head, plane), computed from a
// profile and a multiplier. Size: 40 KiB. A coder makes one for each tile.
//
// Thread-safety: values; functions are Thread-safe. Nothing allocates.

#include <cstdint>

#include "codecs/backend/step_tile.h"
#include "codecs/numbers/hot_levels.h"

namespace cairn::codecs {

inline constexpr uint32_t kHotTokensMin = 16;  // tokens of a coded tile, at least

struct HotChannel {
  int16_t spread_log;   // 256 * log2
  uint8_t width;        // bits of a code
  uint32_t bit_offset;  // offset of the code in a token's codes
};

struct HotTile {
  StepTile step;       // mean, RoPE and basis
  uint32_t row_bytes;  // bytes of a token's codes
  bool is_corrected;   // K and latents: each strip has scales of its own
  HotChannel channels[kProfileDimMax];
};

// Returns the worth of one bit of a channel, for HotWidth().
CAIRN_HD int32_t WorthOf(const ProfileChannel& channel, int32_t multiplier) {
  return channel.spread_log - channel.step_log - multiplier;
}

// REQUIRES: `at` and `plane` exist in the profile; |multiplier| <= kProfileMultiplierMax.
void MakeHotTile(const Profile& profile, ProfileHead at, uint32_t plane, int16_t multiplier,
                 DType dtype, HotTile* tile);

// Returns the bytes of the corrections of a strip: a nibble for each channel.
CAIRN_HD constexpr uint32_t HotCorrectionBytes(uint32_t dim) { return (dim + 1) / 2; }

// Returns the correction of a channel; 0 if the tile has none.
CAIRN_HD int32_t HotCorrectionAt(const HotTile& tile, const uint8_t* corrections,
                                 uint32_t channel) {
  if (!tile.is_corrected) return 0;
  return static_cast<int32_t>(corrections[channel / 2] >> (4 * (channel % 2)) & 0xF) +
         kHotCorrectionMin;
}

}  // namespace cairn::codecs
