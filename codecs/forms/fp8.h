// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles of the recipe `fp8`: a byte an element and a scale a token. docs/recipes/fp8.md draws them.
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

// Writes a tile; kBadTile, with nothing committed, where that is not smaller than raw;
// kTargetTooSmall.
Error EncodeFp8(const Backend& backend, const Recipe& recipe, const TileSource& source,
                ImageWriter* writer);

// Every element as its code and scale have it, rows included.
//   is_streamed  the target is better written past the caches
//   target  geometry.SourceBytes()
void DecodeFp8(const Backend& backend, const TileGeometry& geometry, const TileLayout& layout,
               const uint8_t* content, bool is_streamed, uint8_t* target);

// Scales are finite and not negative, no code is a NaN.
[[nodiscard]] bool HasValidFp8(const TileLayout& layout, std::span<const std::byte> content);

}  // namespace cairn::codecs
