// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes where the parts of a tile lie. They follow from the image's header and the tile's
// directory entry (form and rows). The writer and the parser both compute them, and stored sizes
// are only compared with the result. Strips are the exception: their length depends on their
// content. For them the entry's bytes are used, within bounds, and compared with the headers of the
// strips.
//
// - raw: source bits | zeros to 16
// - strips: one strip for each 128 tokens, see codecs/pack/strip.h and step_strip.h
// - others: codes | zeros to 16 | side: those parts that the form has | zeros to 16
//
// A coded form is allowed only where it is smaller than raw; so no tile is larger than raw. Here is
// what forms have in common; LayoutOf() of codecs/forms/form.h asks the form of a tile.

#include <cstdint>
#include <optional>

#include "codecs/backend/backend.h"
#include "codecs/format/image_spec.h"
#include "codecs/pack/strip.h"
#include "codecs/side/profile.h"

namespace cairn::codecs {

// The matrix that a tile codes.
struct TileGeometry {
  Plane plane = Plane::kK;
  DType dtype = DType::kBf16;
  uint32_t rows = 0;  // tokens; 1 for a state
  uint32_t dim = 0;   // elements of a row

  [[nodiscard]] uint64_t RowBytes() const { return uint64_t{dim} * ElementBytes(dtype); }
  [[nodiscard]] uint64_t SourceBytes() const { return rows * RowBytes(); }
  // Returns true for K and latents, whose groups are tokens of one channel. Groups of V are
  // channels of one token.
  [[nodiscard]] bool IsPerChannel() const { return plane != Plane::kV; }
  // The plane's number in side objects: 0 for K and latents, 1 for V.
  [[nodiscard]] uint32_t PlaneIndex() const { return plane == Plane::kV ? 1 : 0; }
  // Returns false for opaque bytes, which are always kept raw.
  [[nodiscard]] bool IsCodable() const { return dtype != DType::kBytes; }
};

[[nodiscard]] TileGeometry GeometryOf(const ImageSpec& spec, uint32_t plane_index);

// Returns the first layer and head that tile `index` codes.
[[nodiscard]] ProfileHead HeadOf(const ImageSpec& spec, uint32_t index);

inline constexpr uint64_t kChainBytes = 16;
inline constexpr uint64_t kScaleBytes = 2;  // of a token

// One part of the side section.
struct TilePart {
  uint64_t offset = 0;  // from the tile's first byte
  uint64_t bytes = 0;   // 0: the form has no such part, or there is nothing to put in it
};

// The parts of the side section, in the order in which they lie, without gaps: larger units first.
struct TileParts {
  TilePart params;         // of the groups
  TilePart chain;          // ott, K and latents: kChainBytes, the pool as the block leaves it
  TilePart row_bits;       // rows * RowBytes()
  TilePart scales;         // fp16 a token; of arkv: its scores, K and latents
  TilePart positions;      // rows * u16
  TilePart kept_map;       // 1 bit a token
  TilePart pattern_index;  // so many bits a token as there are patterns for
  TilePart gate;           // 1 bit a token
  TilePart corrections;    // 4 bits a channel of each 128 tokens
};

struct TileLayout : TileParts {
  uint64_t codes_bytes = 0;    // before padding; for raw and strips: all there is
  uint64_t side_offset = 0;    // 0 where there is no side section
  uint64_t content_bytes = 0;  // end of the last part
  uint64_t bytes = 0;          // content_bytes with padding
};

// Returns the form in which the recipe codes such a tile; kRawForm if it codes none. A tile that
// would not become smaller is stored raw nevertheless.
[[nodiscard]] uint16_t CodedForm(const TileGeometry& geometry, const Recipe& recipe);

// Places the side section's parts, whose bytes are set, one after another behind the codes. Returns
// none if the tile would not be smaller than raw.
[[nodiscard]] std::optional<TileLayout> PlaceParts(TileLayout layout, const TileGeometry& geometry);

// Returns a layout that has the parts of so many rows and no others yet.
[[nodiscard]] TileLayout LayoutOfRows(const TileGeometry& geometry, uint32_t rows);

// Returns the layout of a tile whose own headers say where its parts lie: only its size is known.
// None if `bytes` is not a multiple of 16, below bytes_min, or not smaller than raw.
[[nodiscard]] std::optional<TileLayout> LayoutOfBytes(const TileGeometry& geometry, uint64_t bytes,
                                                      uint64_t bytes_min);

// Returns the shape of strip `index` of a tile, and the offset of its tokens in the tile's source.
[[nodiscard]] StripShape StripOf(const TileGeometry& geometry, const Recipe& recipe,
                                 uint32_t index);
[[nodiscard]] uint64_t StripSourceOffset(const TileGeometry& geometry, uint32_t index);

[[nodiscard]] TileLayout RawLayout(const TileGeometry& geometry);

// Returns the arguments for the operations of a backend that code a tile in affine form.
[[nodiscard]] AffineTile AffineOf(const TileGeometry& geometry, const Recipe& recipe);

}  // namespace cairn::codecs
