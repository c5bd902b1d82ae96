// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles of `cairn-hot`: levels of a fixed width for each channel, which a profile and a multiplier
// come to, and in K and latents a scale of its own for a channel of each 128 tokens. A block a
// task, a warp a token.

#include <cstdint>

#include "codecs/backend/hot_tile.h"
#include "kernels/body/step_values.h"

namespace cairn::kernels {

struct HotShared {
  TokenPlaces places;
  uint32_t row_bytes;                       // codes of a token
  uint16_t bit_at[codecs::kProfileDimMax];  // of a channel's code among those of a token
  uint8_t width[codecs::kProfileDimMax];    // of it, in bits
  float scale[codecs::kProfileDimMax];      // of its levels
  CentredToken centred[kBlockWarps];
};

CAIRN_DEVICE int32_t WorthAt(const PlaneRecord& plane, uint32_t head, uint32_t channel) {
  return codecs::WorthOf(LoadChannel(plane, head, channel), plane.multiplier);
}

// Widths and scales, channel by channel.
CAIRN_DEVICE void FindScales(const TileTask& task, const PlaneRecord& plane, HotShared* shared) {
  const uint32_t strip = task.token_first / kTaskTokensMax;
  const uint8_t* corrections =
      task.source + task.map_at + strip * codecs::HotCorrectionBytes(plane.dim);
  for (uint32_t c = ThreadIndex(); c < plane.dim; c += kBlockThreads) {
    const codecs::ProfileChannel channel = LoadChannel(plane, task.head, c);
    int32_t correction = 0;
    if (!plane.is_v) {
      const uint32_t nibble = LoadGlobal<uint8_t>(corrections + c / 2) >> c % 2 * 4 & 15;
      correction = static_cast<int32_t>(nibble) + codecs::kHotCorrectionMin;
    }
    shared->scale[c] = codecs::Exp2(codecs::HotScaleLog(channel.spread_log, correction));
    shared->width[c] =
        static_cast<uint8_t>(codecs::HotWidth(codecs::WorthOf(channel, plane.multiplier)));
  }
}

// The first of the channels to which one more bit is worth most; one past the last where all are as
// wide as can be. By a warp.
CAIRN_DEVICE uint32_t NeediestChannel(const TileTask& task, const PlaneRecord& plane,
                                      const HotShared& shared) {
  uint32_t best = plane.dim;
  int32_t best_gain = 0;
  const auto take = [&](uint32_t channel, int32_t gain) {
    const bool is_first = gain == best_gain && channel < best;
    if (channel >= plane.dim || (best != plane.dim && gain <= best_gain && !is_first)) return;
    best = channel;
    best_gain = gain;
  };
  for (uint32_t c = ThreadIndex() % kWarpLanes; c < plane.dim; c += kWarpLanes) {
    const uint32_t width = shared.width[c];
    if (width == codecs::kHotWidthMax) continue;
    take(c, WorthAt(plane, task.head, c) - codecs::kHotThresholds[width]);
  }
  for (uint32_t lanes = kWarpLanes / 2; lanes != 0; lanes /= 2) {
    const uint32_t channel = ShuffleXor(best, lanes);
    take(channel, static_cast<int32_t>(ShuffleXor(static_cast<uint32_t>(best_gain), lanes)));
  }
  return best;
}

// Where codes lie, of widths so far; their bits. By a warp.
CAIRN_DEVICE uint32_t PlaceCodes(const PlaneRecord& plane, HotShared* shared) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, below = (1U << lane) - 1;
  uint32_t bits = 0;
  for (uint32_t first = 0; first < plane.dim; first += kWarpLanes) {
    const uint32_t channel = first + lane;
    const uint32_t width = channel < plane.dim ? shared->width[channel] : 0;
    uint32_t before = bits;
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 3; ++i) {  // a width has three bits
      const uint32_t set = Ballot((width >> i & 1) != 0);
      before += CountBits(set & below) << i;
      bits += CountBits(set) << i;
    }
    if (channel < plane.dim) shared->bit_at[channel] = static_cast<uint16_t>(before);
  }
  return bits;
}

// Gives what is left of a token's last byte to the channels to which it is worth most, and places
// codes. By the first warp; the block has to meet before and behind.
CAIRN_DEVICE void FillLastByte(const TileTask& task, const PlaneRecord& plane, HotShared* shared) {
  if (ThreadIndex() >= kWarpLanes) return;
  uint32_t bits = PlaceCodes(plane, shared);
  for (; bits % 8 != 0 && bits < codecs::kHotWidthMax * plane.dim; ++bits) {
    const uint32_t channel = NeediestChannel(task, plane, *shared);
    SyncWarp();  // nobody looks at widths any more
    if (ThreadIndex() == 0) ++shared->width[channel];
    SyncWarp();
  }
  bits = PlaceCodes(plane, shared);
  if (ThreadIndex() == 0) shared->row_bytes = (bits + 7) / 8;
}

CAIRN_DEVICE void DecodeHotTokens(const TileTask& task, const PlaneRecord& plane,
                                  HotShared* shared) {
  const uint32_t warp = WarpOfBlock();
  CentredToken* centred = &shared->centred[warp];
  for (uint32_t at = warp; at < task.token_count; at += kBlockWarps) {
    uint8_t* place = shared->places.of[at];
    if (place == nullptr || IsRowAt(shared->places, at)) continue;
    const uint32_t token = task.token_first + at;
    const uint8_t* codes = task.source + token * shared->row_bytes;
    for (uint32_t c = ThreadIndex() % kWarpLanes; c < plane.dim; c += kWarpLanes) {
      const uint32_t width = shared->width[c];
      float level = 0.0F;
      if (width != 0) {
        level = codecs::Multiply(codecs::HotLevel(LoadBits(codes, shared->bit_at[c], width), width),
                                 shared->scale[c]);
      }
      centred->of[c] = level;
    }
    SyncWarp();
    StoreTurned(plane, task.head, token, *centred, place);
    SyncWarp();  // what is centred is of the next token
  }
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) DecodeHotAny(DecodeArgs args) {
  CAIRN_SHARED(HotShared, shared);
  DecodeTasks(
      args, &shared.places,
      [&](TileTask& task, const PlaneRecord& plane, Fault* fault) {
        FindScales(task, plane, &shared);
        SyncBlock();
        FillLastByte(task, plane, &shared);
        SyncBlock();
        if (shared.row_bytes != task.code_row_bytes) *fault = Fault::kBadTile;
      },
      [&](const TileTask& task, const PlaneRecord& plane, Fault*) {
        DecodeHotTokens(task, plane, &shared);
      });
}

}  // namespace cairn::kernels
