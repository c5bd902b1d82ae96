// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles of the recipe `arkv:paper`: tokens at full precision, tokens in 8-bit floats, and tokens
// that are gone. docs/recipes/arkv.md draws them.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/stages/stages.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Of fewer channels, how many tokens a tile has does not show in its bytes: it is raw.
inline constexpr uint32_t kKeptDimMin = 16;

// Writes a tile; kBadTile, with nothing committed, where that is not smaller than raw;
// kTargetTooSmall.
Error EncodeKept(const Backend& backend, const Recipe& recipe, const TileSource& source,
                 ImageWriter* writer);

// Every element as code and scale of its token have it; 0 where there is none. Rows are left to the
// caller.
//   layout  what LayoutOf() gives for the tile's entry
//   target  geometry.SourceBytes()
void DecodeKept(const Backend& backend, const TileGeometry& geometry, const TileLayout& layout,
                const uint8_t* content, uint8_t* target);

// The map has the tile's tokens and no more, as many as there are codes and rows, and every row.
// REQUIRES: rows are tokens of the tile.
[[nodiscard]] bool HasValidMap(const TileGeometry& geometry, const TileLayout& layout,
                               uint32_t rows, const uint8_t* content);

// The tile has the token. REQUIRES: token < geometry.rows.
[[nodiscard]] inline bool IsKept(const TileLayout& layout, const uint8_t* content, uint32_t token) {
  return ((content[layout.kept_map.offset + token / 8] >> (token % 8)) & 1) != 0;
}

}  // namespace cairn::codecs
