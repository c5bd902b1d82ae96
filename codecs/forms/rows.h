// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows are tokens that a tile stores at full precision, in addition to its codes. All forms use
// these functions to write the rows, to copy them over decoded codes, and to check them.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/forms/form.h"

namespace cairn::codecs {

// Writes the elements and the ascending positions of rows, and the padding of both sections.
//   tile  layout.bytes
void WriteRows(const TileSource& source, const TilePlan& plan, const TileLayout& layout,
               std::byte* tile);
// WriteRows() for positions that are already in their stored form.
void WriteRowsAt(const TileSource& source, std::span<const uint16_t> positions,
                 const TileLayout& layout, std::byte* tile);

// Writes the rows of a tile over its decoded codes.
void OverlayRows(const StoredTile& tile, const TileLayout& layout, uint8_t* target);

// Returns true if positions ascend and each is a token of the tile.
[[nodiscard]] bool HasValidRows(const StoredTile& tile, const TileLayout& layout);

// Returns true if the padding after each section is zero.
[[nodiscard]] bool HasCleanPadding(const TileLayout& layout, const std::byte* tile);

}  // namespace cairn::codecs
