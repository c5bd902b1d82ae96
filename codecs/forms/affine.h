// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the forms whose codes lie between a (min, range) for each group.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <cstdint>

#include "codecs/forms/form.h"

namespace cairn::codecs {

inline constexpr uint64_t kParamsBytes = 4;  // of a group: fp16 min, fp16 range

// Returns the sizes of codes, params, chain, rows and scores, not placed yet.
[[nodiscard]] TileLayout LayoutOfGroups(const TileGeometry& geometry, const Recipe& recipe,
                                        uint32_t rows);

// Writes a tile by the stages of its recipe; errors as Form::encode.
//   store_more  writes the parts that the form has besides; may be null
using StoreMore = void (*)(const TilePlan& plan, const Recipe& recipe, const TileLayout& layout,
                           uint8_t* tile);
Error EncodeGroups(const Backend& backend, const Recipe& recipe, const TileSource& source,
                   StoreMore store_more, ImageWriter* writer);

// Form::verify of those parts.
Error VerifyGroups(const StoredTile& tile);

// Form::narrow: narrower codes, everything else as it is.
Error NarrowGroups(const Backend& backend, const DecodeInputs& side, const StoredTile& tile,
                   const Recipe& recipe, ImageWriter* writer);

// Returns true if minima are finite and not -0, and ranges finite and not negative.
[[nodiscard]] bool HasValidParams(const TileLayout& layout, const std::byte* tile);

}  // namespace cairn::codecs
