// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells which tokens a tile of the recipe `arkv:paper` has, and computes its layout.
// docs/recipes/arkv.md shows the layout.
//
// Thread-safety: pure functions.

#include <cstdint>
#include <optional>

#include "codecs/format/tile_layout.h"

namespace cairn::codecs {

// The number of coded tokens is derived from the size of a tile. With fewer channels that is not
// possible, so the tile is stored raw.
inline constexpr uint32_t kKeptDimMin = 16;

// Returns the layout of a tile with this number of rows and `low` tokens of low precision, or
// nullopt if the tile must be raw.
[[nodiscard]] std::optional<TileLayout> KeptLayoutOf(const TileGeometry& geometry, uint32_t rows,
                                                     uint32_t low);

// Returns true if the tile has the token. REQUIRES: token < geometry.rows.
[[nodiscard]] inline bool IsKept(const TileLayout& layout, const uint8_t* content, uint32_t token) {
  return ((content[layout.kept_map.offset + token / 8] >> (token % 8)) & 1) != 0;
}

}  // namespace cairn::codecs
