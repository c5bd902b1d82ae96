// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes tokens at three precisions, which a plan from the host assigns to tokens, as
// codecs/forms/kept.cc does. One block per tile, one warp per token. Accepts every shape and dtype.

#include <cstdint>

#include "kernels/body/encode_tasks.h"
#include "kernels/body/fp8_encode.h"

namespace cairn::kernels {

// A decoder derives the number of stored tokens from the size of a tile. With fewer channels this
// is not possible, so the tile is stored raw.
inline constexpr uint32_t kKeptChannelsMin = 16;

struct KeptEncodeShared {
  EncodeShared tile;
  // One bit per token of the tile.
  uint32_t kept[kRowWordsMax];
  uint32_t before[kRowWordsMax];  // by word of `kept`: tokens with codes in earlier words
};

// Takes the plan's marks for 32 tokens. Also marks as rows the tokens that cannot be coded.
CAIRN_DEVICE void MarkPlanned(const EncodeTile& tile, uint32_t word, KeptEncodeShared* shared) {
  uint32_t kept = 0, original = 0;
  CAIRN_NO_UNROLL
  for (uint32_t i = 0; i < 32 && 32 * word + i < tile.plane.tokens; ++i) {
    const uint32_t state = tile.task.scores == nullptr
                               ? kStateLow
                               : LoadGlobal<uint8_t>(tile.task.scores + 32 * word + i);
    if (state != kStateEvicted) kept |= 1U << i;
    if (state > kStateLow) original |= 1U << i;
  }
  shared->kept[word] = kept;
  shared->tile.is_row[word] = (shared->tile.is_row[word] | original) & kept;
}

// Counts the tokens with codes. Synchronizes the block inside and at the end.
CAIRN_DEVICE uint32_t CountCoded(KeptEncodeShared* shared) {
  SyncBlock();
  const auto of_word = [&](uint32_t word) {
    return CountBits(shared->kept[word] & ~shared->tile.is_row[word]);
  };
  uint32_t all = 0;
  CAIRN_NO_UNROLL
  for (uint32_t word = 0; word < kRowWordsMax; ++word) {
    if (word == ThreadIndex()) shared->before[word] = all;
    all += of_word(word);
  }
  SyncBlock();
  return all;
}

CAIRN_DEVICE void StoreKeptTokens(const EncodeTile& tile, const KeptEncodeShared& shared) {
  for (uint32_t token = WarpOfBlock(); token < tile.plane.tokens; token += kBlockWarps) {
    const uint32_t coded = shared.kept[token / 32] & ~shared.tile.is_row[token / 32];
    const uint32_t bit = 1U << token % 32;
    if ((coded & bit) == 0) continue;
    StoreFp8Token(tile, shared.tile.places[token],
                  shared.before[token / 32] + CountBits(coded & (bit - 1)), false);
  }
  for (uint32_t at = ThreadIndex(); at < tile.map_bytes; at += kBlockThreads) {
    StoreGlobal(tile.task.slot + tile.map_at + at,
                static_cast<uint8_t>(shared.kept[at / 4] >> at % 4 * 8));
  }
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) EncodeKeptAny(EncodeArgs args) {
  CAIRN_SHARED(KeptEncodeShared, shared);
  EncodeTiles(args, &shared.tile, [&](const EncodeReader& reader, EncodeTile* tile, Fault*) {
    if (tile->plane.dim < kKeptChannelsMin) return false;
    MarkUncodable(*tile, &shared.tile);
    SyncBlock();
    if (ThreadIndex() < kRowWordsMax) MarkPlanned(*tile, ThreadIndex(), &shared);
    const uint32_t coded = CountCoded(&shared);
    tile->codes_bytes = coded * tile->plane.dim;
    tile->row_bits_at = Align16(tile->codes_bytes);
    tile->scales_bytes = 2 * coded;
    tile->map_bytes = (tile->plane.tokens + 7) / 8;
    ListRows(reader, *tile, &shared.tile);
    if (!PlaceTile(shared.tile, tile)) return false;
    StoreKeptTokens(*tile, shared);
    StoreRowsOf(*tile, shared.tile);
    return true;
  });
}

}  // namespace cairn::kernels
