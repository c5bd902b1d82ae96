// SPDX-License-Identifier: Apache-2.0
#pragma once
// Code shared by the two forms that store 8-bit floats with a scale for each token.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/format/tile_layout.h"

namespace cairn::codecs {

// Decodes every element from its code and scale, including the elements of rows.
//   is_streamed  bypass the caches when writing the target
//   target  geometry.SourceBytes()
void DecodeFp8(const Backend& backend, const TileGeometry& geometry, const TileLayout& layout,
               const uint8_t* content, bool is_streamed, uint8_t* target);

// Returns true if all scales are finite and not negative, and no code is a NaN.
[[nodiscard]] bool HasValidFp8(const TileLayout& layout, std::span<const std::byte> content);

}  // namespace cairn::codecs
