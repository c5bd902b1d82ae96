// SPDX-License-Identifier: Apache-2.0
#pragma once
// Code shared by the forms in which each group of codes has a (min, range).
//
// Thread-safety: pure functions.

#include <cstddef>
#include <cstdint>

#include "codecs/forms/form.h"

namespace cairn::codecs {

inline constexpr uint64_t kParamsBytes = 4;  // for a group: fp16 min, fp16 range

// Returns the sizes of codes, params, chain, rows and scores, without offsets.
[[nodiscard]] TileLayout LayoutOfGroups(const TileGeometry& geometry, const Recipe& recipe,
                                        uint32_t rows);

// Encodes a tile with the stages of its recipe. Errors: those of Form::encode.
//   store_more  writes the parts that only this form has; may be null
using StoreMore = void (*)(const TilePlan& plan, const Recipe& recipe, const TileLayout& layout,
                           uint8_t* tile);
Error EncodeGroups(const Backend& backend, const Recipe& recipe, const TileSource& source,
                   StoreMore store_more, ImageWriter* writer);

// Checks the parts that these forms share, as Form::verify does.
Error VerifyGroups(const StoredTile& tile);

// Narrows codes, as Form::narrow does. All other parts stay.
Error NarrowGroups(const Backend& backend, const DecodeInputs& side, const StoredTile& tile,
                   const Recipe& recipe, ImageWriter* writer);

// Returns true if all minima are finite and not -0, and all ranges are finite and not negative.
[[nodiscard]] bool HasValidParams(const TileLayout& layout, const std::byte* tile);

}  // namespace cairn::codecs
