// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the parts of a tile lie. Everything follows from the image's header and the tile's
// directory entry (form and rows), so the writer and the parser both compute it and stored sizes
// are only ever compared with it. How long strips are is what they hold: the entry's bytes count,
// within bounds, and the headers of the strips are compared with them.
//
//   raw      source bits | zeros to 16
//   affine   codes | zeros to 16 | params, row bits, row positions | zeros to 16
//   strips   one strip for each 128 tokens, see codecs/pack/strip.h and step_strip.h
//
// A coded form is allowed only where it is smaller than raw; so no tile is larger than raw.

#include <cstdint>
#include <optional>

#include "codecs/backend.h"
#include "codecs/image.h"
#include "codecs/pack/strip.h"

namespace cairn::codecs {

// One tile's place in the world, whatever its content.
struct TileGeometry {
  Plane plane = Plane::kK;
  DType dtype = DType::kBf16;
  uint32_t rows = 0;  // of the matrix
  uint32_t dim = 0;   // columns

  [[nodiscard]] uint64_t RowBytes() const { return uint64_t{dim} * ElementBytes(dtype); }
  [[nodiscard]] uint64_t SourceBytes() const { return rows * RowBytes(); }
  // K and latents: a group is a channel over tokens. V: a token over channels.
  [[nodiscard]] bool IsPerChannel() const { return plane != Plane::kV; }
  // Opaque bytes are never coded.
  [[nodiscard]] bool IsCodable() const { return dtype != DType::kBytes; }
};

[[nodiscard]] TileGeometry GeometryOf(const ImageSpec& spec, uint32_t plane_index);

struct TileLayout {
  uint64_t codes_bytes = 0;    // before padding; for raw: the source bits
  uint64_t params_offset = 0;  // of the second section: 4 bytes a group
  uint64_t params_bytes = 0;
  uint64_t row_bits_offset = 0;   // rows * RowBytes()
  uint64_t positions_offset = 0;  // rows * u16, ascending
  uint64_t content_bytes = 0;     // end of the last part
  uint64_t bytes = 0;             // content_bytes with padding
};

// None where the form is not one that this recipe writes for this tile.
//   bytes  of the tile as the directory has them: read for strips alone
[[nodiscard]] std::optional<TileLayout> LayoutOf(const TileGeometry& geometry, const Recipe& recipe,
                                                 uint16_t form, uint32_t rows, uint64_t bytes = 0);

// What strip `index` of a tile is of, and where its tokens start in the source.
[[nodiscard]] StripShape StripOf(const TileGeometry& geometry, const Recipe& recipe,
                                 uint32_t index);
[[nodiscard]] uint64_t StripSourceOffset(const TileGeometry& geometry, uint32_t index);

[[nodiscard]] TileLayout RawLayout(const TileGeometry& geometry);

// The step arguments of a tile in affine form.
[[nodiscard]] AffineTile AffineOf(const TileGeometry& geometry, const Recipe& recipe);

}  // namespace cairn::codecs
