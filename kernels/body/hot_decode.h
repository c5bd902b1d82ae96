// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes tiles of `cairn-hot`. The codes of a channel have a fixed width, and select levels that a
// profile and a multiplier determine. Channels of K and of latents also have a scale per 128
// tokens. One block per task, one warp per token.

#include <cstdint>

#include "codecs/backend/hot_tile.h"
#include "kernels/body/hot_widths.h"

namespace cairn::kernels {

struct HotDecodeShared {
  TokenPlaces places;
  HotWidths widths;
  float scale[codecs::kProfileDimMax];  // of the levels of a channel
  CentredToken centred[kBlockWarps];
};

// Computes the scales of all channels.
CAIRN_DEVICE void FindScales(const TileTask& task, const PlaneRecord& plane,
                             HotDecodeShared* shared) {
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
  }
}

CAIRN_DEVICE void DecodeHotTokens(const TileTask& task, const PlaneRecord& plane,
                                  HotDecodeShared* shared) {
  const uint32_t warp = WarpOfBlock();
  CentredToken* centred = &shared->centred[warp];
  for (uint32_t at = warp; at < task.token_count; at += kBlockWarps) {
    uint8_t* place = shared->places.of[at];
    if (place == nullptr || IsRowAt(shared->places, at)) continue;
    const uint32_t token = task.token_first + at;
    const uint8_t* codes = task.source + token * shared->widths.row_bytes;
    for (uint32_t c = ThreadIndex() % kWarpLanes; c < plane.dim; c += kWarpLanes) {
      const uint32_t width = shared->widths.width[c];
      float level = 0.0F;
      if (width != 0) {
        const uint32_t code = LoadBits(codes, shared->widths.bit_at[c], width);
        level = codecs::HotValueOf(code, shared->scale[c], width);
      }
      centred->of[c] = level;
    }
    SyncWarp();
    StoreTurned(plane, task.head, token, *centred, place);
    SyncWarp();  // `centred` is reused for the next token
  }
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) DecodeHotAny(DecodeArgs args) {
  CAIRN_SHARED(HotDecodeShared, shared);
  DecodeTasks(
      args, &shared.places,
      [&](TileTask& task, const PlaneRecord& plane, Fault* fault) {
        FindScales(task, plane, &shared);
        FindWidths(plane, task.head, &shared.widths);
        SyncBlock();
        FillLastByte(plane, task.head, &shared.widths);
        SyncBlock();
        if (shared.widths.row_bytes != task.code_row_bytes) *fault = Fault::kBadTile;
      },
      [&](const TileTask& task, const PlaneRecord& plane, Fault*) {
        DecodeHotTokens(task, plane, &shared);
      });
}

}  // namespace cairn::kernels
