// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes the widths of the codes of `cairn-hot`, and the place of each code in the bytes of its
// token. Both follow from a profile and a multiplier, as in MakeHotTile().

#include <cstdint>

#include "codecs/backend/hot_tile.h"
#include "kernels/body/step_values.h"

namespace cairn::kernels {

// The code widths of a head, in shared memory.
struct HotWidths {
  uint32_t row_bytes;                       // size of the codes of a token
  uint16_t bit_at[codecs::kProfileDimMax];  // first bit of each channel's code in these bytes
  uint8_t width[codecs::kProfileDimMax];    // bits of that code
};

CAIRN_DEVICE int32_t WorthAt(const PlaneRecord& plane, uint32_t head, uint32_t channel) {
  return codecs::WorthOf(LoadChannel(plane, head, channel), plane.multiplier);
}

// Computes the width of each channel. FillLastByte() may increase it later.
CAIRN_DEVICE void FindWidths(const PlaneRecord& plane, uint32_t head, HotWidths* widths) {
  for (uint32_t c = ThreadIndex(); c < plane.dim; c += kBlockThreads) {
    widths->width[c] = static_cast<uint8_t>(codecs::HotWidth(WorthAt(plane, head, c)));
  }
}

// Returns the channel for which one more bit has the largest worth (the first of several), or one
// past the last channel if all have the largest width. Uses one warp.
CAIRN_DEVICE uint32_t NeediestChannel(const PlaneRecord& plane, uint32_t head,
                                      const HotWidths& widths) {
  uint32_t best = plane.dim;
  int32_t best_gain = 0;
  const auto take = [&](uint32_t channel, int32_t gain) {
    const bool is_first = gain == best_gain && channel < best;
    if (channel >= plane.dim || (best != plane.dim && gain <= best_gain && !is_first)) return;
    best = channel;
    best_gain = gain;
  };
  for (uint32_t c = ThreadIndex() % kWarpLanes; c < plane.dim; c += kWarpLanes) {
    const uint32_t width = widths.width[c];
    if (width == codecs::kHotWidthMax) continue;
    take(c, WorthAt(plane, head, c) - codecs::kHotThresholds[width]);
  }
  for (uint32_t lanes = kWarpLanes / 2; lanes != 0; lanes /= 2) {
    const uint32_t channel = ShuffleXor(best, lanes);
    take(channel, static_cast<int32_t>(ShuffleXor(static_cast<uint32_t>(best_gain), lanes)));
  }
  return best;
}

// Places the codes with their present widths. Returns the number of their bits. Uses one warp.
CAIRN_DEVICE uint32_t PlaceHotCodes(const PlaneRecord& plane, HotWidths* widths) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, below = (1U << lane) - 1;
  uint32_t bits = 0;
  for (uint32_t first = 0; first < plane.dim; first += kWarpLanes) {
    const uint32_t channel = first + lane;
    const uint32_t width = channel < plane.dim ? widths->width[channel] : 0;
    uint32_t before = bits;
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 3; ++i) {  // a width has three bits
      const uint32_t set = Ballot((width >> i & 1) != 0);
      before += CountBits(set & below) << i;
      bits += CountBits(set) << i;
    }
    if (channel < plane.dim) widths->bit_at[channel] = static_cast<uint16_t>(before);
  }
  return bits;
}

// Gives the unused bits of a token's last byte to the channels for which they have the largest
// worth, and places the codes. Uses the first warp. The block must synchronize before and after the
// call.
CAIRN_DEVICE void FillLastByte(const PlaneRecord& plane, uint32_t head, HotWidths* widths) {
  if (ThreadIndex() >= kWarpLanes) return;
  uint32_t bits = PlaceHotCodes(plane, widths);
  for (; bits % 8 != 0 && bits < codecs::kHotWidthMax * plane.dim; ++bits) {
    const uint32_t channel = NeediestChannel(plane, head, *widths);
    SyncWarp();  // no lane reads the widths any more
    if (ThreadIndex() == 0) ++widths->width[channel];
    SyncWarp();
  }
  bits = PlaceHotCodes(plane, widths);
  if (ThreadIndex() == 0) widths->row_bytes = (bits + 7) / 8;
}

}  // namespace cairn::kernels
