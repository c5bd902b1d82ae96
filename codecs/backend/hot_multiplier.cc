// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/hot_multiplier.h"

#include <algorithm>

#include "codecs/backend/hot_tile.h"

namespace cairn::codecs {
namespace {

// Hundredths of a bit for rows, corrections and the directory.
constexpr uint32_t kHotBesides = 12;

// Returns the bits of a token's codes over all heads and planes.
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
  int32_t low = -kProfileMultiplierMax - 1;  // too small to fit
  int32_t high = kProfileMultiplierMax;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return static_cast<int16_t>(high);
}

}  // namespace cairn::codecs
