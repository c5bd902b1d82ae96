// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows are tokens that a tile keeps at full precision beside its codes. All forms write them, copy
// them over the decoded codes and check them with these functions.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/forms/form.h"

namespace cairn::codecs {

// Writes row bits and positions, ascending, and the padding of both sections.
//   tile  layout.bytes
void WriteRows(const TileSource& source, const TilePlan& plan, const TileLayout& layout,
               std::byte* tile);
// Likewise, for positions as they are stored.
void WriteRowsAt(const TileSource& source, std::span<const uint16_t> positions,
                 const TileLayout& layout, std::byte* tile);

// Writes the rows of a tile over its decoded codes.
void OverlayRows(const StoredTile& tile, const TileLayout& layout, uint8_t* target);

// Returns true if positions ascend and are tokens of the tile.
[[nodiscard]] bool HasValidRows(const StoredTile& tile, const TileLayout& layout);

// Returns true if the padding behind each section is zero.
[[nodiscard]] bool HasCleanPadding(const TileLayout& layout, const std::byte* tile);

}  // namespace cairn::codecs
