// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles of K of the recipe `mixkvq`: channels in classes of 2 and 4 bits, and of source bits.
// docs/recipes/mixkvq.md draws them.
//
// Thread-safety: pure functions. Nothing allocates.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/stages/allocate/salience.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Writes a tile; kBadTile, with nothing committed, where it has to be raw; kTargetTooSmall.
Error EncodeMixed(const Backend& backend, const Recipe& recipe, const TileSource& source,
                  ImageWriter* writer);

// Every element as its code has it, rows included. Where the parts lie; none where the tile's map
// is not of this recipe, or says of other bytes than the tile's.
//   is_streamed  the target is better written past the caches
//   target  geometry.SourceBytes()
[[nodiscard]] std::optional<TileLayout> DecodeMixed(const Backend& backend,
                                                    const TileGeometry& geometry,
                                                    const Recipe& recipe, uint32_t rows,
                                                    std::span<const std::byte> content,
                                                    bool is_streamed, uint8_t* target);

// The same without decoding: none too where bits of map or codes are set that stand for nothing.
// The padding that the layout says of is not looked at.
[[nodiscard]] std::optional<TileLayout> CheckMixed(const TileGeometry& geometry,
                                                   const Recipe& recipe, uint32_t rows,
                                                   std::span<const std::byte> content);

}  // namespace cairn::codecs
