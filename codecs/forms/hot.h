// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles of the recipe `cairn-hot`: static levels of a fixed width for each channel.
// docs/recipes/cairn-hot.md draws the bytes.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/backend/hot_tile.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/stages/stages.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Writes a tile; kBadTile, with nothing committed, where that is not smaller than raw;
// kTargetTooSmall. REQUIRES: source.profile is codable with.
Error EncodeHot(const Backend& backend, const Recipe& recipe, const TileSource& source,
                ImageWriter* writer);

// Every element as its code has it, rows included. False where the profile makes codes of another
// size.
//   layout  of the tile
//   is_streamed  the target is better written past the caches
//   scratch  of the image; target  geometry.SourceBytes()
// REQUIRES: IsCodableWith(spec, &profile).
[[nodiscard]] bool DecodeHot(const Backend& backend, const ImageSpec& spec, uint32_t index,
                             const Profile& profile, const TileLayout& layout,
                             const uint8_t* content, bool is_streamed, StepScratch* scratch,
                             uint8_t* target);

// All that can be seen of codes and corrections without the profile: bits that no code has are 0.
[[nodiscard]] bool HasCleanHot(const TileGeometry& geometry, const TileLayout& layout,
                               const uint8_t* content);

}  // namespace cairn::codecs
