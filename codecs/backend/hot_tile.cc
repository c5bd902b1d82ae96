// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/hot_tile.h"

#include <algorithm>

namespace cairn::codecs {
namespace {

// Hundredths of a bit that are left for rows, corrections and the directory.
constexpr uint32_t kHotBesides = 12;

int32_t WorthOf(const ProfileChannel& channel, int32_t multiplier) {
  return channel.spread_log - channel.step_log - multiplier;
}

// Gives what is left of the last byte to the channels to which it is worth most.
//   worths  of the channels, as WorthOf() has them
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

// Bits of a token's codes over all heads and planes.
uint64_t BitsOfAll(const Profile& profile, int32_t multiplier) {
  uint64_t total = 0;
  for (uint32_t plane = 0; plane < profile.planes(); ++plane) {
    const uint32_t dim = profile.Dim(plane);
    for (uint32_t layer = 0; layer < profile.layers(); ++layer) {
      for (uint32_t head = 0; head < profile.heads(); ++head) {
        const std::byte* channels = profile.Channels(plane, {layer, head});
        uint32_t bits = 0;
        for (uint32_t c = 0; c < dim; ++c) {
          bits += HotWidth(WorthOf(Profile::LoadChannel(channels, c), multiplier));
        }
        total += std::min((bits + 7) / 8 * 8, kHotWidthMax * dim);
      }
    }
  }
  return total;
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

std::optional<int16_t> HotMultiplierOf(const Profile& profile, uint32_t bits_in_tenths) {
  return profile.hot_rates().Get(bits_in_tenths,
                                 [&] { return SearchHotMultiplier(profile, bits_in_tenths); });
}

std::optional<int16_t> SearchHotMultiplier(const Profile& profile, uint32_t bits_in_tenths) {
  uint64_t channels = 0;
  for (uint32_t plane = 0; plane < profile.planes(); ++plane) {
    channels += uint64_t{profile.layers()} * profile.heads() * profile.Dim(plane);
  }
  const auto fits = [&](int32_t multiplier) {
    return 100 * BitsOfAll(profile, multiplier) <= (10 * bits_in_tenths - kHotBesides) * channels;
  };
  if (!fits(kProfileMultiplierMax)) return std::nullopt;
  int32_t low = -kProfileMultiplierMax - 1;  // below the least that fits
  int32_t high = kProfileMultiplierMax;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return static_cast<int16_t>(high);
}

}  // namespace cairn::codecs
