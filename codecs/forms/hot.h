// SPDX-License-Identifier: Apache-2.0
#pragma once
// The layout of a tile of the recipe `cairn-hot`. docs/recipes/cairn-hot.md shows it.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <cstdint>
#include <optional>

#include "codecs/format/tile_layout.h"

namespace cairn::codecs {

// Returns the layout of a tile in which the codes of a token take row_bytes. Returns nullopt if the
// tile must be raw.
[[nodiscard]] std::optional<TileLayout> HotLayoutOf(const TileGeometry& geometry,
                                                    uint64_t row_bytes, uint32_t rows);

}  // namespace cairn::codecs
