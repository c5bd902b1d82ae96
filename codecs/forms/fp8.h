// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the two forms that code with 8-bit floats and a scale for each token.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/format/tile_layout.h"

namespace cairn::codecs {

// Decodes every element from its code and scale, rows included.
//   is_streamed  write the target past the caches
//   target  geometry.SourceBytes()
void DecodeFp8(const Backend& backend, const TileGeometry& geometry, const TileLayout& layout,
               const uint8_t* content, bool is_streamed, uint8_t* target);

// Returns true if all scales are finite and not negative, and no code is a NaN.
[[nodiscard]] bool HasValidFp8(const TileLayout& layout, std::span<const std::byte> content);

}  // namespace cairn::codecs
