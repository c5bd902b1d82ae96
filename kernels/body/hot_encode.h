// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes tiles of `cairn-hot`, as codecs/forms/hot.cc does. One block per tile, one warp per
// token. Strips of K and of latents have their own scales, which are found in a first pass over the
// tokens; a second pass codes the tokens. Between the passes, the values of the tokens are stored
// in the slot, after the room for a raw tile: fp32, [token][channel].

#include <cstdint>

#include "codecs/numbers/hot_levels.h"
#include "kernels/body/centre.h"
#include "kernels/body/encode_tasks.h"
#include "kernels/body/hot_widths.h"
#include "kernels/body/strips.h"

namespace cairn::kernels {

inline constexpr uint32_t kHotRowWords = codecs::kHotWidthMax * codecs::kProfileDimMax / 32;

struct HotEncodeShared {
  EncodeShared tile;
  HotWidths widths;
  int8_t corrections[kStripsOfTileMax][codecs::kProfileDimMax];
  struct Warp {
    CentredToken centred;  // first used for norms
    uint32_t codes[kHotRowWords];
  } warps[kBlockWarps];
};
static_assert(kStripsOfTileMax == kBlockWarps);

CAIRN_DEVICE uint8_t* WaitingValues(const EncodeTile& tile, uint32_t token) {
  return tile.task.slot + RawBytes(tile.plane) + 4 * token * tile.plane.dim;
}

// Stores the codes of a token, with one warp. For a row, all codes are 0.
//   code_at(channel, width)  returns the code of a channel whose width is not 0
template <typename CodeAt>
CAIRN_DEVICE void StoreHotCodes(const EncodeTile& tile, const HotWidths& widths, uint32_t token,
                                bool is_row, uint32_t* words, CodeAt code_at) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  for (uint32_t i = lane; 4 * i < widths.row_bytes; i += kWarpLanes) words[i] = 0;
  SyncWarp();
  for (uint32_t c = lane; c < tile.plane.dim && !is_row; c += kWarpLanes) {
    const uint32_t width = widths.width[c], bit = widths.bit_at[c];
    if (width == 0) continue;
    const uint32_t code = code_at(c, width);
    AtomicOrShared(&words[bit / 32], code << bit % 32);
    if (bit % 32 + width > 32) AtomicOrShared(&words[bit / 32 + 1], code >> (32 - bit % 32));
  }
  SyncWarp();
  uint8_t* target = tile.task.slot + token * widths.row_bytes;
  for (uint32_t at = lane; at < widths.row_bytes; at += kWarpLanes) {
    StoreGlobal(target + at, static_cast<uint8_t>(words[at / 4] >> at % 4 * 8));
  }
  SyncWarp();  // words are reused for the next token
}

// Computes the values of all tokens, and marks the tokens that cannot be coded. For V, also stores
// the codes.
CAIRN_DEVICE void CentreTile(const EncodeTile& tile, HotEncodeShared* shared) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t lane = ThreadIndex() % kWarpLanes, head = tile.task.head;
  HotEncodeShared::Warp* own = &shared->warps[WarpOfBlock()];
  for (uint32_t token = WarpOfBlock(); token < plane.tokens; token += kBlockWarps) {
    bool is_row = IsMarked(shared->tile.is_row, token);
    if (!is_row) {
      bool is_uncodable =
          CentreSource(plane, head, token, shared->tile.places[token], &own->centred);
      SyncWarp();
      for (uint32_t c = lane; c < plane.dim; c += kWarpLanes) {
        const float value = CentredValue(plane, head, c, own->centred);
        const float inverse = codecs::HotInverseScale(LoadChannel(plane, head, c).spread_log);
        is_uncodable |= !codecs::IsHotCodable(value, inverse);
        if (!plane.is_v) StoreGlobal(WaitingValues(tile, token) + 4 * c, value);
      }
      is_row = Any(is_uncodable);
      if (is_row && lane == 0) AtomicOrShared(&shared->tile.is_found[token / 32], 1U << token % 32);
    }
    if (!plane.is_v) {
      SyncWarp();  // `centred` is reused for the next token
      continue;
    }
    StoreHotCodes(tile, shared->widths, token, is_row, own->codes, [&](uint32_t c, uint32_t width) {
      const float inverse = codecs::HotInverseScale(LoadChannel(plane, head, c).spread_log);
      return codecs::HotCodeOf(own->centred.of[c], inverse, width);
    });
  }
}

// Computes the scale corrections of K and of latents, with one thread per channel of a strip.
CAIRN_DEVICE void FindCorrections(const EncodeTile& tile, HotEncodeShared* shared) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t strips = (plane.tokens + codecs::kStripTokens - 1) / codecs::kStripTokens;
  for (uint32_t i = ThreadIndex(); i < strips * plane.dim; i += kBlockThreads) {
    const uint32_t strip = i / plane.dim, c = i % plane.dim;
    const uint32_t first = strip * codecs::kStripTokens, left = plane.tokens - first;
    const uint32_t end = first + (left < codecs::kStripTokens ? left : codecs::kStripTokens);
    const float inverse = codecs::HotInverseScale(LoadChannel(plane, tile.task.head, c).spread_log);
    codecs::HotPower power;
    CAIRN_NO_UNROLL
    for (uint32_t token = first; token < end; ++token) {
      if (IsMarked(shared->tile.is_row, token)) continue;
      const auto value = LoadRecord<float>(WaitingValues(tile, token) + 4 * c);
      power.Add(value, inverse);
    }
    shared->corrections[strip][c] = static_cast<int8_t>(power.Correction());
  }
}

CAIRN_DEVICE void StoreWaitingCodes(const EncodeTile& tile, HotEncodeShared* shared) {
  const PlaneRecord& plane = tile.plane;
  uint32_t* words = shared->warps[WarpOfBlock()].codes;
  for (uint32_t token = WarpOfBlock(); token < plane.tokens; token += kBlockWarps) {
    const int8_t* corrections = shared->corrections[token / codecs::kStripTokens];
    const uint8_t* values = WaitingValues(tile, token);
    StoreHotCodes(tile, shared->widths, token, IsMarked(shared->tile.is_row, token), words,
                  [&](uint32_t c, uint32_t width) {
                    const int32_t spread = LoadChannel(plane, tile.task.head, c).spread_log;
                    const float inverse = codecs::HotInverseScale(spread, corrections[c]);
                    const auto value = LoadRecord<float>(values + 4 * c);
                    return codecs::HotCodeOf(value, inverse, width);
                  });
  }
}

CAIRN_DEVICE void StoreCorrections(const EncodeTile& tile, const HotEncodeShared& shared) {
  const uint32_t dim = tile.plane.dim, row = codecs::HotCorrectionBytes(dim);
  const auto nibble = [&](uint32_t strip, uint32_t c) {
    return static_cast<uint32_t>(shared.corrections[strip][c] - codecs::kHotCorrectionMin);
  };
  for (uint32_t i = ThreadIndex(); i < tile.map_bytes; i += kBlockThreads) {
    const uint32_t strip = i / row, c = i % row * 2;
    const uint32_t high = c + 1 < dim ? nibble(strip, c + 1) : 0;
    StoreGlobal(tile.task.slot + tile.map_at + i,
                static_cast<uint8_t>(nibble(strip, c) | high << 4));
  }
}

CAIRN_DEVICE bool EncodeHot(const EncodeReader& reader, EncodeTile* tile, HotEncodeShared* shared,
                            Fault* fault) {
  const PlaneRecord& plane = tile->plane;
  if (plane.tokens < codecs::kHotTokensMin) return false;
  FindWidths(plane, tile->task.head, &shared->widths);
  SyncBlock();
  FillLastByte(plane, tile->task.head, &shared->widths);
  const uint32_t first = WarpOfBlock() * codecs::kStripTokens;
  if (first < plane.tokens) {
    SelectStepRows(reader, tile->number, tile->task, plane, ShapeOfStrip(plane, first), first,
                   shared->warps[WarpOfBlock()].centred.of, &shared->tile.is_row[first / 32],
                   fault);
  }
  if (SyncBlockOr(*fault != Fault::kNone)) return false;
  const uint32_t strips = (plane.tokens + codecs::kStripTokens - 1) / codecs::kStripTokens;
  tile->codes_bytes = plane.tokens * shared->widths.row_bytes;
  tile->row_bits_at = Align16(tile->codes_bytes);
  tile->map_bytes = plane.is_v ? 0 : strips * codecs::HotCorrectionBytes(plane.dim);
  // If this were larger, the slot would have no room for the tile.
  if (Align16(tile->row_bits_at + tile->map_bytes) >= RawBytes(plane)) return false;
  CentreTile(*tile, shared);
  AddFound(&shared->tile);
  if (!plane.is_v) {
    FindCorrections(*tile, shared);
    SyncBlock();
    StoreWaitingCodes(*tile, shared);
  }
  ListRows(reader, *tile, &shared->tile);
  if (!PlaceTile(shared->tile, tile)) return false;
  StoreCorrections(*tile, *shared);
  StoreRowsOf(*tile, shared->tile);
  return true;
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 3) EncodeHotAny(EncodeArgs args) {
  CAIRN_SHARED(HotEncodeShared, shared);
  EncodeTiles(args, &shared.tile, [&](const EncodeReader& reader, EncodeTile* tile, Fault* fault) {
    return EncodeHot(reader, tile, &shared, fault);
  });
}

}  // namespace cairn::kernels
