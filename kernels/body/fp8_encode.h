// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes tiles to E4M3 codes with a scale per token, and rows (tokens stored as source elements),
// as codecs/forms/fp8.cc does. One block per tile, one warp per token. Accepts every shape and
// dtype.

#include <cstdint>

#include "codecs/numbers/fp8.h"
#include "kernels/body/encode_tasks.h"

namespace cairn::kernels {

// Returns the largest magnitude of a token, in all lanes.
CAIRN_DEVICE float LargestOf(const PlaneRecord& plane, const uint8_t* row) {
  uint32_t largest = 0;  // the bits of magnitudes have the order of the magnitudes
  for (uint32_t c = ThreadIndex() % kWarpLanes; c < plane.dim; c += kWarpLanes) {
    const uint32_t bits = codecs::FloatBits(LoadValue(plane.dtype, row, c)) & 0x7FFFFFFF;
    largest = bits > largest ? bits : largest;
  }
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    const uint32_t other = ShuffleXor(largest, lanes);
    largest = other > largest ? other : largest;
  }
  return codecs::BitsFloat(largest);
}

// Stores the codes and the scale of a token, with one warp. A row gets zeros for both.
//   index  index of the token among the tokens that have codes
CAIRN_DEVICE void StoreFp8Token(const EncodeTile& tile, const uint8_t* row, uint32_t index,
                                bool is_row) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const uint16_t scale = is_row ? uint16_t{0} : codecs::Fp8Scale(LargestOf(plane, row));
  const float inverse = codecs::Fp8Inverse(codecs::Fp16ToFloat(scale));
  if (lane == 0) StoreGlobal(tile.task.slot + tile.scales_at + 2 * index, scale);
  for (uint32_t c = lane; c < plane.dim; c += kWarpLanes) {
    const float value = codecs::Multiply(LoadValue(plane.dtype, row, c), inverse);
    StoreGlobal(tile.task.slot + index * plane.dim + c,
                is_row ? uint8_t{0} : codecs::FloatToE4m3(value));
  }
}

using Fp8EncodeShared = EncodeShared;

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) EncodeFp8Any(EncodeArgs args) {
  CAIRN_SHARED(EncodeShared, shared);
  EncodeTiles(args, &shared, [&](const EncodeReader& reader, EncodeTile* tile, Fault*) {
    tile->codes_bytes = tile->plane.tokens * tile->plane.dim;
    tile->row_bits_at = Align16(tile->codes_bytes);
    tile->scales_bytes = 2 * tile->plane.tokens;
    MarkUncodable(*tile, &shared);
    SyncBlock();
    ListRows(reader, *tile, &shared);
    if (!PlaceTile(shared, tile)) return false;
    for (uint32_t token = WarpOfBlock(); token < tile->plane.tokens; token += kBlockWarps) {
      StoreFp8Token(*tile, shared.places[token], token, IsMarked(shared.is_row, token));
    }
    StoreRowsOf(*tile, shared);
    return true;
  });
}

}  // namespace cairn::kernels
