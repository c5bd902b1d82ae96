// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts stored tiles of codes to smaller ones, without their source: to fewer bits per code, or
// to fewer rows. codecs/forms/affine.cc and codecs/transform/thin.cc do the same. One block per
// tile.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/numbers/row_age.h"
#include "codecs/pack/dense.h"
#include "kernels/body/affine_encode.h"
#include "kernels/body/encode_tasks.h"

namespace cairn::kernels {

// Converts a code of `from` bits to a code of `bits` bits.
CAIRN_DEVICE uint32_t NarrowCode(uint32_t code, uint32_t from, uint32_t bits) {
  const auto wide = static_cast<uint8_t>(code);
  return from == 8 ? codecs::Narrow(wide, bits) : codecs::Narrow4To2(wide);
}

// Converts the codes of all tokens, and copies everything else.
CAIRN_DEVICE bool NarrowTile(EncodeTile* tile) {
  const PlaneRecord& plane = tile->plane;
  const uint32_t from = tile->task.rules >> kRuleVariantShift;
  const uint32_t wide_bytes = codecs::CodeRowBytes(plane.dim, from);
  const uint32_t row_bytes = codecs::CodeRowBytes(plane.dim, plane.bits);
  const uint32_t of_byte = 8 / plane.bits;
  tile->codes_bytes = plane.tokens * row_bytes;
  for (uint32_t i = ThreadIndex(); i < tile->codes_bytes; i += kBlockThreads) {
    const uint32_t first = i % row_bytes * of_byte;
    const uint8_t* codes = tile->task.source + i / row_bytes * wide_bytes;
    uint32_t byte = 0;
    for (uint32_t c = 0; c < of_byte && first + c < plane.dim; ++c) {
      const uint32_t code = LoadBits(codes, (first + c) * from, from);
      byte |= NarrowCode(code, from, plane.bits) << (c * plane.bits);
    }
    StoreGlobal(tile->task.slot + i, static_cast<uint8_t>(byte));
  }
  const uint32_t side_at = Align16(tile->codes_bytes);
  const uint32_t wide_at = Align16(plane.tokens * wide_bytes);
  StoreZeros(tile->task.slot + tile->codes_bytes, side_at - tile->codes_bytes, ThreadIndex(),
             kBlockThreads);
  CopyUnits<U32x4>(tile->task.source + wide_at, tile->task.slot + side_at,
                   tile->task.stored_bytes - wide_at, ThreadIndex(), kBlockThreads);
  tile->rows = tile->task.stored_rows;
  tile->content_bytes = side_at + tile->task.stored_bytes - wide_at;
  return true;
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) NarrowTiles(EncodeArgs args) {
  CAIRN_SHARED(EncodeShared, shared);
  EncodeTiles(args, &shared,
              [&](const EncodeReader&, EncodeTile* tile, Fault*) { return NarrowTile(tile); });
}

// Returns how many rows a stored tile keeps when its chain has that length. Rows are stored so that
// the kept ones come first. Synchronizes the block inside.
//   positions  positions of the rows of the tile
CAIRN_DEVICE uint32_t CountYoung(const EncodeTile& tile, uint64_t chain_tokens,
                                 const uint8_t* positions, EncodeShared* shared) {
  const auto variant = static_cast<codecs::LogVariant>(tile.task.rules >> kRuleVariantShift);
  const uint32_t rows = tile.task.stored_rows;
  for (uint32_t row = ThreadIndex(); row < rows; row += kBlockThreads) {
    const uint32_t position = LoadGlobal<uint16_t>(positions + 2 * row);
    const bool stays = (position & ~uint32_t{tile.plane.token_bits} & 0xFFFF) != 0;
    if (stays || codecs::RowUntil(tile.plane.first_position + position, variant) >= chain_tokens) {
      continue;
    }
    AtomicOrShared(&shared->is_found[row / 32], 1U << row % 32);
  }
  SyncBlock();
  for (uint32_t word = 0; word < kRowWordsMax; ++word) {
    if (shared->is_found[word] == 0) continue;
    const uint32_t row = 32 * word + LowestBit(shared->is_found[word]);
    return row < rows ? row : rows;
  }
  return rows;
}

CAIRN_DEVICE bool ThinTile(const EncodeReader& reader, EncodeTile* tile, EncodeShared* shared) {
  const PlaneRecord& plane = tile->plane;
  PlaceCodes(tile);
  const uint8_t* source = tile->task.source;
  const uint8_t* positions = source + tile->row_bits_at + tile->task.stored_rows * plane.row_bytes;
  tile->rows = CountYoung(*tile, reader.Image(plane.image).chain_tokens, positions, shared);
  tile->positions_at = tile->row_bits_at + tile->rows * plane.row_bytes;
  tile->content_bytes = tile->positions_at + 2 * tile->rows;
  uint8_t* slot = tile->task.slot;
  const uint32_t whole = tile->positions_at / 16 * 16;
  CopyUnits<U32x4>(source, slot, whole, ThreadIndex(), kBlockThreads);
  CopyUnits<uint16_t>(source + whole, slot + whole, tile->positions_at - whole, ThreadIndex(),
                      kBlockThreads);
  CopyUnits<uint16_t>(positions, slot + tile->positions_at, 2 * tile->rows, ThreadIndex(),
                      kBlockThreads);
  StoreZeros(slot + tile->content_bytes, Align16(tile->content_bytes) - tile->content_bytes,
             ThreadIndex(), kBlockThreads);
  return true;
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) ThinTiles(EncodeArgs args) {
  CAIRN_SHARED(EncodeShared, shared);
  EncodeTiles(args, &shared, [&](const EncodeReader& reader, EncodeTile* tile, Fault*) {
    return ThinTile(reader, tile, &shared);
  });
}

}  // namespace cairn::kernels
