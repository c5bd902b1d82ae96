// SPDX-License-Identifier: Apache-2.0
#include "codecs/tile_layout.h"

#include "codecs/bytes.h"
#include "codecs/pack/dense.h"

namespace cairn::codecs {
namespace {

constexpr uint64_t kParamsBytes = 4;    // fp16 min, fp16 range
constexpr uint64_t kPositionBytes = 2;  // of a row

uint64_t GroupCount(const AffineTile& tile, bool is_per_channel) {
  const uint32_t along = is_per_channel ? tile.tokens : tile.dim;
  const uint32_t across = is_per_channel ? tile.dim : tile.tokens;
  return uint64_t{(along + tile.group - 1) / tile.group} * across;
}

// rows_max: of the recipe whose form it is.
std::optional<TileLayout> StripsLayout(const TileGeometry& geometry, uint32_t rows,
                                       uint32_t rows_max, uint64_t bytes) {
  const uint64_t strip_bytes_min = kStripHeaderBytes + kSectionAlignment;
  if (!geometry.IsCodable() || rows > rows_max || bytes % kSectionAlignment != 0 ||
      bytes >= RawLayout(geometry).bytes || bytes < StripCount(geometry.rows) * strip_bytes_min) {
    return std::nullopt;
  }
  TileLayout layout;
  layout.codes_bytes = bytes;
  layout.content_bytes = bytes;
  layout.bytes = bytes;
  return layout;
}

}  // namespace

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

std::optional<TileLayout> LayoutOf(const TileGeometry& geometry, const Recipe& recipe,
                                   uint16_t form, uint32_t rows, uint64_t bytes) {
  const TileLayout raw = RawLayout(geometry);
  if (form == kRawForm) {
    if (rows != 0) return std::nullopt;
    return raw;
  }
  if (form == kStripsForm && recipe.id == RecipeId::kExact) {
    return StripsLayout(geometry, rows, 0, bytes);
  }
  if (form == kStepStripsForm && recipe.id == RecipeId::kCairn) {
    return StripsLayout(geometry, rows, geometry.rows, bytes);
  }
  if (!geometry.IsCodable() || recipe.id != RecipeId::kKivi || form != AffineForm(recipe.bits) ||
      rows > geometry.rows) {
    return std::nullopt;
  }
  const AffineTile tile = AffineOf(geometry, recipe);
  TileLayout layout;
  layout.codes_bytes = uint64_t{tile.tokens} * CodeRowBytes(tile.dim, tile.bits);
  layout.params_offset = AlignSection(layout.codes_bytes);
  layout.params_bytes = GroupCount(tile, geometry.IsPerChannel()) * kParamsBytes;
  layout.row_bits_offset = layout.params_offset + layout.params_bytes;
  layout.positions_offset = layout.row_bits_offset + rows * geometry.RowBytes();
  layout.content_bytes = layout.positions_offset + rows * kPositionBytes;
  layout.bytes = AlignSection(layout.content_bytes);
  if (layout.bytes >= raw.bytes) return std::nullopt;
  return layout;
}

}  // namespace cairn::codecs
