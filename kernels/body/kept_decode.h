// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes arkv:paper, which stores tokens at three precisions. A map says which tokens the tile
// has. Each of these is either a row (source elements), or E4M3 codes with a scale. Codes are
// stored one token after another. Tokens that the map leaves out are decoded to zeros.

#include <cstdint>

#include "kernels/body/fp8_decode.h"

namespace cairn::kernels {

struct KeptDecodeShared {
  TokenPlaces places;
  // One bit per token of the whole tile.
  uint32_t kept[kTileTokensMax / 32];
  uint32_t rows[kTileTokensMax / 32];
  uint32_t before[kTileTokensMax / 32];  // by word of `kept`: tokens with codes in earlier words
};

// Returns 32 bits of the map. Bits after the last token are 0.
CAIRN_DEVICE uint32_t LoadKept(const TileTask& task, const PlaneRecord& plane, uint32_t word) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t at = 4 * word + i;
    if (8 * at < plane.tokens) {
      kept |= static_cast<uint32_t>(LoadGlobal<uint8_t>(task.source + task.map_at + at)) << (8 * i);
    }
  }
  const uint32_t left = plane.tokens > 32 * word ? plane.tokens - 32 * word : 0;
  return left >= 32 ? kept : kept & ((1U << left) - 1);
}

// Finds the tokens that have codes. The block must synchronize before it reads the result.
CAIRN_DEVICE void FindKept(const TileTask& task, const PlaneRecord& plane, KeptDecodeShared* shared,
                           Fault* fault) {
  const uint32_t thread = ThreadIndex();
  constexpr uint32_t kWords = kTileTokensMax / 32;
  if (thread < kWords) {
    shared->kept[thread] = LoadKept(task, plane, thread);
    shared->rows[thread] = 0;
  }
  SyncBlock();
  for (uint32_t row = thread; row < task.rows; row += kBlockThreads) {
    const uint32_t token = StoredToken(task, plane, row);
    const bool is_kept = token < plane.tokens && (shared->kept[token / 32] >> token % 32 & 1) != 0;
    const uint32_t bit = 1U << token % 32;
    if (!is_kept || (AtomicOrShared(&shared->rows[token / 32], bit) & bit) != 0) {
      *fault = Worse(*fault, Fault::kBadTile);
    }
  }
  SyncBlock();
  if (thread >= kWords) return;
  uint32_t before = 0;
  CAIRN_NO_UNROLL
  for (uint32_t i = 0; i < thread; ++i) before += CountBits(shared->kept[i] & ~shared->rows[i]);
  shared->before[thread] = before;
  const uint32_t all = before + CountBits(shared->kept[thread] & ~shared->rows[thread]);
  if (thread == kWords - 1 && all != task.coded_tokens) *fault = Worse(*fault, Fault::kBadTile);
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) DecodeKeptAny(DecodeArgs args) {
  CAIRN_SHARED(KeptDecodeShared, shared);
  DecodeTasks(
      args, &shared.places,
      [&](TileTask& task, const PlaneRecord& plane, Fault* fault) {
        FindKept(task, plane, &shared, fault);
      },
      [&](const TileTask& task, const PlaneRecord& plane, Fault* fault) {
        const auto number_of = [&](uint32_t token) {
          const uint32_t kept = shared.kept[token / 32], bit = 1U << token % 32;
          return (kept & bit) == 0 ? kNoCodes
                                   : shared.before[token / 32] +
                                         CountBits(kept & ~shared.rows[token / 32] & (bit - 1));
        };
        DecodeFp8Elements(task, plane, shared.places, number_of, fault);
      });
}

}  // namespace cairn::kernels
