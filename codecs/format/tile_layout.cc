// SPDX-License-Identifier: Apache-2.0
#include "codecs/format/tile_layout.h"

#include <array>
#include <bit>

#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

constexpr uint64_t kPositionBytes = 2;  // of a row

using PartList = std::array<TilePart, sizeof(TileParts) / sizeof(TilePart)>;

}  // namespace

std::optional<TileLayout> PlaceParts(TileLayout layout, const TileGeometry& geometry) {
  layout.side_offset = AlignSection(layout.codes_bytes);
  layout.content_bytes = layout.side_offset;
  auto parts = std::bit_cast<PartList>(static_cast<const TileParts&>(layout));
  for (TilePart& part : parts) {
    part.offset = layout.content_bytes;
    layout.content_bytes += part.bytes;
  }
  static_cast<TileParts&>(layout) = std::bit_cast<TileParts>(parts);
  layout.bytes = AlignSection(layout.content_bytes);
  if (layout.bytes >= RawLayout(geometry).bytes) return std::nullopt;
  return layout;
}

TileLayout LayoutOfRows(const TileGeometry& geometry, uint32_t rows) {
  TileLayout layout;
  layout.row_bits.bytes = rows * geometry.RowBytes();
  layout.positions.bytes = rows * kPositionBytes;
  return layout;
}

std::optional<TileLayout> LayoutOfBytes(const TileGeometry& geometry, uint64_t bytes,
                                        uint64_t bytes_min) {
  if (bytes % kSectionAlignment != 0 || bytes >= RawLayout(geometry).bytes || bytes < bytes_min) {
    return std::nullopt;
  }
  TileLayout layout;
  layout.codes_bytes = layout.content_bytes = layout.bytes = bytes;
  return layout;
}

uint16_t CodedForm(const TileGeometry& geometry, const Recipe& recipe) {
  const RecipeTraits& traits = recipe.Traits();
  return FormInRecipe(geometry.IsPerChannel() ? traits.k_form : traits.v_form, recipe.bits);
}

StripShape StripOf(const TileGeometry& geometry, const Recipe& recipe, uint32_t index) {
  const uint32_t left = geometry.rows - index * kStripTokens;
  return {left < kStripTokens ? left : kStripTokens, geometry.dim, geometry.dtype, recipe.is_fast};
}

uint64_t StripSourceOffset(const TileGeometry& geometry, uint32_t index) {
  return uint64_t{index} * kStripTokens * geometry.RowBytes();
}

TileGeometry GeometryOf(const ImageSpec& spec, uint32_t plane_index) {
  const Plane plane = PlaneAt(spec.tile.kind, plane_index);
  return {plane, spec.tile.dtype, TileRows(spec.tile.kind, spec.tokens),
          PlaneDim(spec.tile, plane)};
}

ProfileHead HeadOf(const ImageSpec& spec, uint32_t index) {
  const Slice slice = TilingOf(spec).AreaOf(index).slice;
  return {slice.layer_first, slice.head_first};
}

TileLayout RawLayout(const TileGeometry& geometry) {
  TileLayout layout;
  layout.codes_bytes = geometry.SourceBytes();
  layout.content_bytes = layout.codes_bytes;
  layout.bytes = AlignSection(layout.content_bytes);
  return layout;
}

AffineTile AffineOf(const TileGeometry& geometry, const Recipe& recipe) {
  return {.tokens = geometry.rows,
          .dim = geometry.dim,
          .group = geometry.IsPerChannel() ? recipe.k_group_tokens : recipe.v_group_channels,
          .dtype = geometry.dtype,
          .bits = recipe.bits,
          .is_clipped = recipe.is_clipped};
}

}  // namespace cairn::codecs
