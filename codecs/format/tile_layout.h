// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes the offsets of the parts of a tile. They follow from the image's header and the tile's
// directory entry (form and rows). Both the writer and the parser compute them; sizes that are
// stored are only compared with the result. Strips are the exception, because their length depends
// on their content. For strips, the parser takes the size from the directory entry, checks its
// bounds, and compares it with the headers of the strips.
//
// - raw: source elements | zeros to 16
// - strips: one strip for each 128 tokens, see codecs/pack/strip.h and step_strip.h
// - others: codes | zeros to 16 | side section: the parts that the form has | zeros to 16
//
// A tile is coded only if it is then smaller than raw, so no tile is larger than raw. This file has
// the code that forms share; LayoutOf() in codecs/forms/form.h calls the form of a tile.

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
  // Returns true for K and latents: a group is tokens of one channel. In V, a group is channels of
  // one token.
  [[nodiscard]] bool IsPerChannel() const { return plane != Plane::kV; }
  // Returns the plane's number in side objects: 0 for K and latents, 1 for V.
  [[nodiscard]] uint32_t PlaneIndex() const { return plane == Plane::kV ? 1 : 0; }
  // Returns false for opaque bytes, which are always kept raw.
  [[nodiscard]] bool IsCodable() const { return dtype != DType::kBytes; }
};

[[nodiscard]] TileGeometry GeometryOf(const ImageSpec& spec, uint32_t plane_index);

// Returns the first layer and head that tile `index` codes.
[[nodiscard]] ProfileHead HeadOf(const ImageSpec& spec, uint32_t index);

inline constexpr uint64_t kChainBytes = 16;
inline constexpr uint64_t kScaleBytes = 2;  // per token

// One part of the side section.
struct TilePart {
  uint64_t offset = 0;  // from the tile's first byte
  uint64_t bytes = 0;   // 0: the form has no such part, or the part is empty
};

// The parts of the side section, in the order of their offsets and without gaps. Parts with larger
// units come first.
struct TileParts {
  TilePart params;         // params of all groups
  TilePart chain;          // the pool of norms after the block; only ott, K and latents have it
  TilePart row_bits;       // rows * RowBytes()
  TilePart scales;         // an fp16 per token; in arkv the scores, only of K and latents
  TilePart positions;      // rows * u16
  TilePart kept_map;       // 1 bit per token
  TilePart pattern_index;  // the number of each token's pattern, in as few bits as suffice
  TilePart gate;           // 1 bit per token
  TilePart corrections;    // 4 bits per channel, for each 128 tokens
};

struct TileLayout : TileParts {
  uint64_t codes_bytes = 0;    // before padding; for raw and strips: the whole tile
  uint64_t side_offset = 0;    // 0 if there is no side section
  uint64_t content_bytes = 0;  // end of the last part
  uint64_t bytes = 0;          // content_bytes plus padding
};

// Returns the form in which the recipe codes a tile of this geometry. Returns kRawForm if the
// recipe does not code such tiles. A tile that would not become smaller is nevertheless stored raw.
[[nodiscard]] uint16_t CodedForm(const TileGeometry& geometry, const Recipe& recipe);

// Computes the offsets of the parts of the side section. They follow the codes without gaps. Their
// sizes must be set. Returns nullopt if the tile would not be smaller than raw.
[[nodiscard]] std::optional<TileLayout> PlaceParts(TileLayout layout, const TileGeometry& geometry);

// Returns a layout in which only the sizes of row_bits and positions are set, for this number of
// rows.
[[nodiscard]] TileLayout LayoutOfRows(const TileGeometry& geometry, uint32_t rows);

// Returns the layout of a tile whose own headers give the offsets of its parts. Only its size is
// set. Returns nullopt if `bytes` is not a multiple of 16, below bytes_min, or not smaller than
// raw.
[[nodiscard]] std::optional<TileLayout> LayoutOfBytes(const TileGeometry& geometry, uint64_t bytes,
                                                      uint64_t bytes_min);

// Returns the shape of strip `index` of a tile, and the offset of its tokens in the tile's source.
[[nodiscard]] StripShape StripOf(const TileGeometry& geometry, const Recipe& recipe,
                                 uint32_t index);
[[nodiscard]] uint64_t StripSourceOffset(const TileGeometry& geometry, uint32_t index);

[[nodiscard]] TileLayout RawLayout(const TileGeometry& geometry);

// Returns the arguments of the backend operations that code a tile in affine form.
[[nodiscard]] AffineTile AffineOf(const TileGeometry& geometry, const Recipe& recipe);

}  // namespace cairn::codecs
