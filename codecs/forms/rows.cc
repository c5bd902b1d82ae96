// SPDX-License-Identifier: Apache-2.0
#include "codecs/forms/rows.h"

#include <array>
#include <cstring>

#include "codecs/stages/select/log_rows.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {

void WriteRowsAt(const TileSource& source, std::span<const uint16_t> positions,
                 const TileLayout& layout, std::byte* tile) {
  const uint64_t row_bytes = source.geometry.RowBytes();
  std::byte* bits = tile + layout.row_bits.offset;
  std::byte* target = tile + layout.positions.offset;
  for (const uint16_t position : positions) {
    const uint32_t token = position & ~kRowStays;
    std::memcpy(bits, source.bytes + token * row_bytes, row_bytes);
    Store(target, position);
    bits += row_bytes;
    target += sizeof(uint16_t);
  }
  std::memset(tile + layout.codes_bytes, 0, layout.side_offset - layout.codes_bytes);
  std::memset(tile + layout.content_bytes, 0, layout.bytes - layout.content_bytes);
}

void WriteRows(const TileSource& source, const TilePlan& plan, const TileLayout& layout,
               std::byte* tile) {
  std::array<uint16_t, kTokensPerBlockMax> positions;
  uint32_t count = 0;
  for (uint32_t token = 0; token < source.geometry.rows; ++token) {
    if (plan.IsRow(token)) positions[count++] = static_cast<uint16_t>(token);
  }
  WriteRowsAt(source, std::span(positions).first(count), layout, tile);
}

void OverlayRows(const StoredTile& tile, const TileLayout& layout, uint8_t* target) {
  const auto token_bits =
      static_cast<uint16_t>(tile.recipe->Traits().has_ageing_rows ? ~kRowStays : 0xFFFF);
  const uint64_t row_bytes = tile.geometry.RowBytes();
  const uint8_t* content = U8(tile.content.data());
  for (uint32_t i = 0; i < tile.entry.rows; ++i) {
    const auto stored = Load<uint16_t>(content + layout.positions.offset + 2 * uint64_t{i});
    const uint32_t position = stored & token_bits;
    // A position past the tile, which VerifyTile() refuses, is skipped.
    if (position >= tile.geometry.rows) continue;
    std::memcpy(target + position * row_bytes, content + layout.row_bits.offset + i * row_bytes,
                row_bytes);
  }
}

bool HasValidRows(const StoredTile& tile, const TileLayout& layout) {
  int32_t previous = -1;
  for (uint32_t i = 0; i < tile.entry.rows; ++i) {
    const auto position =
        Load<uint16_t>(tile.content.data() + layout.positions.offset + 2 * uint64_t{i});
    if (position <= previous || position >= tile.geometry.rows) return false;
    previous = position;
  }
  return true;
}

bool HasCleanPadding(const TileLayout& layout, const std::byte* tile) {
  if (!IsZero(tile + layout.content_bytes, layout.bytes - layout.content_bytes)) return false;
  return layout.side_offset == 0 ||
         IsZero(tile + layout.codes_bytes, layout.side_offset - layout.codes_bytes);
}

}  // namespace cairn::codecs
