// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tokens that a tile of the recipe `arkv:paper` has, and its layout. docs/recipes/arkv.md draws
// it.
//
// Thread-safety: pure functions.

#include <cstdint>
#include <optional>

#include "codecs/format/tile_layout.h"

namespace cairn::codecs {

// Of fewer channels, how many tokens a tile has does not show in its bytes: it is raw.
inline constexpr uint32_t kKeptDimMin = 16;

// Of a tile with so many rows and, besides, tokens of low precision; none where such a tile has to
// be raw.
[[nodiscard]] std::optional<TileLayout> KeptLayoutOf(const TileGeometry& geometry, uint32_t rows,
                                                     uint32_t low);

// The tile has the token. REQUIRES: token < geometry.rows.
[[nodiscard]] inline bool IsKept(const TileLayout& layout, const uint8_t* content, uint32_t token) {
  return ((content[layout.kept_map.offset + token / 8] >> (token % 8)) & 1) != 0;
}

}  // namespace cairn::codecs
