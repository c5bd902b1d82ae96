// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/hot_tile.h"

#include "codecs/side/profile.h"

namespace cairn::codecs {
namespace {

// Gives the rest of the last byte to the channels with the largest worth.
//   worths  of the channels, from WorthOf()
//   bits    of a token's codes so far
void FillBytes(const int32_t* worths, uint32_t bits, HotTile* tile) {
  const uint32_t dim = tile->step.dim;
  for (; bits % 8 != 0 && bits < kHotWidthMax * dim; ++bits) {
    uint32_t best = dim;
    int32_t best_gain = 0;
    for (uint32_t c = 0; c < dim; ++c) {
      const uint32_t width = tile->channels[c].width;
      if (width == kHotWidthMax) continue;
      const int32_t gain = worths[c] - kHotThresholds[width];
      if (best != dim && gain <= best_gain) continue;
      best = c;
      best_gain = gain;
    }
    ++tile->channels[best].width;
  }
}

}  // namespace

void MakeHotTile(const Profile& profile, ProfileHead at, uint32_t plane, int16_t multiplier,
                 DType dtype, HotTile* tile) {
  MakeStepTile(profile, at, plane, {}, dtype, &tile->step);
  tile->is_corrected = plane == 0;
  const std::byte* channels = profile.Channels(plane, at);
  int32_t worths[kProfileDimMax];
  uint32_t bits = 0;
  for (uint32_t c = 0; c < tile->step.dim; ++c) {
    const ProfileChannel known = Profile::LoadChannel(channels, c);
    worths[c] = WorthOf(known, multiplier);
    const uint32_t width = HotWidth(worths[c]);
    tile->channels[c] = {known.spread_log, static_cast<uint8_t>(width), 0};
    bits += width;
  }
  FillBytes(worths, bits, tile);
  uint32_t offset = 0;
  for (uint32_t c = 0; c < tile->step.dim; ++c) {
    tile->channels[c].bit_offset = offset;
    offset += tile->channels[c].width;
  }
  tile->row_bytes = (offset + 7) / 8;
}

}  // namespace cairn::codecs
