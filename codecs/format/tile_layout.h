// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the parts of a tile lie. Everything follows from the image's header and the tile's
// directory entry (form and rows), so the writer and the parser both compute it and stored sizes
// are only ever compared with it. How long strips are is what they hold: the entry's bytes count,
// within bounds, and the headers of the strips are compared with them.
//
//   raw      source bits | zeros to 16
//   strips   one strip for each 128 tokens, see codecs/pack/strip.h and step_strip.h
//   others   codes | zeros to 16 | side: those parts that the form has | zeros to 16
//
// A coded form is allowed only where it is smaller than raw; so no tile is larger than raw.

#include <cstdint>
#include <optional>

#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
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
  // Of side objects: 0 is K or a latent, 1 is V.
  [[nodiscard]] uint32_t PlaneIndex() const { return plane == Plane::kV ? 1 : 0; }
  // Opaque bytes are never coded.
  [[nodiscard]] bool IsCodable() const { return dtype != DType::kBytes; }
};

[[nodiscard]] TileGeometry GeometryOf(const ImageSpec& spec, uint32_t plane_index);

inline constexpr uint64_t kChainBytes = 16;

// A stretch of the side section.
struct TilePart {
  uint64_t offset = 0;  // from the tile's first byte
  uint64_t bytes = 0;   // 0: the form has no such part, or there is nothing to put in it
};

struct TileLayout {
  uint64_t codes_bytes = 0;  // before padding; for raw and strips: all there is
  uint64_t side_offset = 0;  // 0 where there is no side section
  // The side section's parts, in this order and without gaps: larger units first.
  TilePart params;             // of the groups
  TilePart chain;              // ott, K and latents: kChainBytes, the pool as the block leaves it
  TilePart row_bits;           // rows * RowBytes()
  TilePart scales;             // fp16 a token; of arkv: its scores, K and latents
  TilePart positions;          // rows * u16
  TilePart kept_map;           // 1 bit a token
  TilePart pattern_index;      // so many bits a token as there are patterns for
  TilePart gate;               // 1 bit a token
  TilePart corrections;        // 4 bits a channel of each 128 tokens
  uint64_t content_bytes = 0;  // end of the last part
  uint64_t bytes = 0;          // content_bytes with padding
};

// The form of such a tile when a recipe codes it; raw's where it codes none. What it cannot make
// smaller is raw all the same.
[[nodiscard]] uint16_t CodedForm(const TileGeometry& geometry, const Recipe& recipe);

// None where the form is not one that this recipe writes for this tile.
//   bytes  of the tile as the directory has them: read where they are not known without it
[[nodiscard]] std::optional<TileLayout> LayoutOf(const TileGeometry& geometry, const Recipe& recipe,
                                                 uint16_t form, uint32_t rows, uint64_t bytes = 0);

// Of a tile of `cairn-hot` whose tokens have row_bytes of codes each; none where such a tile has to
// be raw.
[[nodiscard]] std::optional<TileLayout> HotLayoutOf(const TileGeometry& geometry,
                                                    uint64_t row_bytes, uint32_t rows);

// Of a tile of `arkv:paper` with so many rows and, besides, tokens of low precision; none where
// such a tile has to be raw.
[[nodiscard]] std::optional<TileLayout> KeptLayoutOf(const TileGeometry& geometry, uint32_t rows,
                                                     uint32_t low);

// Of a tile of K in classes of channels: class map | zeros to 16 | codes of the classes | zeros to
// 16 | side. The map says how many channels a class has.
struct MixedLayout {
  uint64_t source_bits = 0;  // offsets: tokens * channels of source bits
  uint64_t four_bits = 0;    // tokens * CodeRowBytes(channels, bits)
  uint64_t two_bits = 0;
  TileLayout tile;
};

//   counts  channels by ChannelClass, geometry.dim together
[[nodiscard]] std::optional<MixedLayout> MixedLayoutOf(const TileGeometry& geometry,
                                                       const Recipe& recipe,
                                                       const uint32_t (&counts)[3], uint32_t rows);

// What strip `index` of a tile is of, and where its tokens start in the source.
[[nodiscard]] StripShape StripOf(const TileGeometry& geometry, const Recipe& recipe,
                                 uint32_t index);
[[nodiscard]] uint64_t StripSourceOffset(const TileGeometry& geometry, uint32_t index);

[[nodiscard]] TileLayout RawLayout(const TileGeometry& geometry);

// Of a pattern's number: the least that tells the recipe's patterns apart.
[[nodiscard]] uint32_t PatternBits(const Recipe& recipe);

// The step arguments of a tile in affine form.
[[nodiscard]] AffineTile AffineOf(const TileGeometry& geometry, const Recipe& recipe);

}  // namespace cairn::codecs
