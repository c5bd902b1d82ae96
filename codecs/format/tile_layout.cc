// SPDX-License-Identifier: Apache-2.0
#include "codecs/format/tile_layout.h"

#include <bit>

#include "codecs/backend/hot_tile.h"
#include "codecs/forms/kept.h"
#include "codecs/pack/dense.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

constexpr uint64_t kParamsBytes = 4;    // fp16 min, fp16 range
constexpr uint64_t kScaleBytes = 2;     // of a token
constexpr uint64_t kPositionBytes = 2;  // of a row

uint64_t GroupCount(const AffineTile& tile, bool is_per_channel) {
  const uint32_t along = is_per_channel ? tile.tokens : tile.dim;
  const uint32_t across = is_per_channel ? tile.dim : tile.tokens;
  return uint64_t{(along + tile.group - 1) / tile.group} * across;
}

// Puts the side section's parts, whose bytes are set, one after another behind the codes. None
// where that is not smaller than raw.
std::optional<TileLayout> Placed(TileLayout layout, const TileGeometry& geometry) {
  layout.side_offset = AlignSection(layout.codes_bytes);
  layout.content_bytes = layout.side_offset;
  for (TilePart* part :
       {&layout.params, &layout.chain, &layout.row_bits, &layout.scales, &layout.positions,
        &layout.kept_map, &layout.pattern_index, &layout.gate, &layout.corrections}) {
    part->offset = layout.content_bytes;
    layout.content_bytes += part->bytes;
  }
  layout.bytes = AlignSection(layout.content_bytes);
  if (layout.bytes >= RawLayout(geometry).bytes) return std::nullopt;
  return layout;
}

std::optional<TileLayout> AffineLayout(const TileGeometry& geometry, const Recipe& recipe,
                                       uint32_t rows) {
  const AffineTile tile = AffineOf(geometry, recipe);
  TileLayout layout;
  layout.codes_bytes = uint64_t{tile.tokens} * CodeRowBytes(tile.dim, tile.bits);
  layout.params.bytes = GroupCount(tile, geometry.IsPerChannel()) * kParamsBytes;
  layout.chain.bytes = recipe.id == RecipeId::kOtt && geometry.IsPerChannel() ? kChainBytes : 0;
  layout.row_bits.bytes = rows * geometry.RowBytes();
  layout.scales.bytes =
      recipe.id == RecipeId::kArkv && geometry.IsPerChannel() ? geometry.rows * kScaleBytes : 0;
  layout.positions.bytes = rows * kPositionBytes;
  if (recipe.NeedsBank()) {
    layout.pattern_index.bytes = (uint64_t{geometry.rows} * PatternBits(recipe) + 7) / 8;
    layout.gate.bytes = geometry.IsPerChannel() ? 0 : (geometry.rows + 7) / 8;
  }
  return Placed(layout, geometry);
}

std::optional<TileLayout> Fp8Layout(const TileGeometry& geometry, uint32_t rows) {
  TileLayout layout;
  layout.codes_bytes = uint64_t{geometry.rows} * geometry.dim;
  layout.row_bits.bytes = rows * geometry.RowBytes();
  layout.scales.bytes = geometry.rows * kScaleBytes;
  layout.positions.bytes = rows * kPositionBytes;
  return Placed(layout, geometry);
}

// The count of low tokens is the one that comes to those bytes: each takes 16 or more.
std::optional<TileLayout> KeptLayout(const TileGeometry& geometry, uint32_t rows, uint64_t bytes) {
  uint32_t low = 0;
  for (uint32_t step = kTokensPerBlockMax; step != 0; step /= 2) {
    if (low + step > geometry.rows - rows) continue;
    const auto layout = KeptLayoutOf(geometry, rows, low + step);
    if (layout.has_value() && layout->bytes <= bytes) low += step;
  }
  return KeptLayoutOf(geometry, rows, low);
}

// rows_max: of the recipe whose form it is.
std::optional<TileLayout> StripsLayout(const TileGeometry& geometry, uint32_t rows,
                                       uint32_t rows_max, uint64_t bytes) {
  const uint64_t strip_bytes_min = kStripHeaderBytes + kSectionAlignment;
  if (rows > rows_max || bytes % kSectionAlignment != 0 || bytes >= RawLayout(geometry).bytes ||
      bytes < StripCount(geometry.rows) * strip_bytes_min) {
    return std::nullopt;
  }
  TileLayout layout;
  layout.codes_bytes = bytes;
  layout.content_bytes = bytes;
  layout.bytes = bytes;
  return layout;
}

// Where the parts lie, the class map says.
std::optional<TileLayout> MixedBounds(const TileGeometry& geometry, uint64_t bytes) {
  if (bytes % kSectionAlignment != 0 || bytes >= RawLayout(geometry).bytes ||
      bytes < AlignSection(CodeRowBytes(geometry.dim, 2))) {
    return std::nullopt;
  }
  TileLayout layout;
  layout.codes_bytes = layout.content_bytes = layout.bytes = bytes;
  return layout;
}

// Without row_bytes, which follow from the bytes of the whole.
std::optional<TileLayout> HotLayout(const TileGeometry& geometry, uint32_t rows, uint64_t bytes) {
  const auto side = HotLayoutOf(geometry, 0, rows);
  if (!side.has_value() || bytes < side->bytes) return std::nullopt;
  return HotLayoutOf(geometry, (bytes - side->bytes) / geometry.rows, rows);
}

}  // namespace

std::optional<TileLayout> HotLayoutOf(const TileGeometry& geometry, uint64_t row_bytes,
                                      uint32_t rows) {
  const bool is_corrected = geometry.plane != Plane::kV;
  if (geometry.rows < kHotTokensMin || 8 * row_bytes >= kHotWidthMax * geometry.dim + 8) {
    return std::nullopt;
  }
  TileLayout layout;
  layout.codes_bytes = geometry.rows * row_bytes;
  layout.row_bits.bytes = rows * geometry.RowBytes();
  layout.positions.bytes = rows * kPositionBytes;
  layout.corrections.bytes =
      is_corrected ? StripCount(geometry.rows) * HotCorrectionBytes(geometry.dim) : 0;
  return Placed(layout, geometry);
}

std::optional<TileLayout> KeptLayoutOf(const TileGeometry& geometry, uint32_t rows, uint32_t low) {
  if (geometry.dim < kKeptDimMin) return std::nullopt;
  TileLayout layout;
  layout.codes_bytes = uint64_t{low} * geometry.dim;
  layout.row_bits.bytes = rows * geometry.RowBytes();
  layout.scales.bytes = low * kScaleBytes;
  layout.positions.bytes = rows * kPositionBytes;
  layout.kept_map.bytes = (geometry.rows + 7) / 8;
  return Placed(layout, geometry);
}

std::optional<MixedLayout> MixedLayoutOf(const TileGeometry& geometry, const Recipe& recipe,
                                         const uint32_t (&counts)[3], uint32_t rows) {
  const uint64_t tokens = geometry.rows;
  const auto [two, four, source] = counts;
  const uint64_t groups = (tokens + recipe.k_group_tokens - 1) / recipe.k_group_tokens;
  MixedLayout layout;
  layout.source_bits = AlignSection(CodeRowBytes(geometry.dim, 2));
  layout.four_bits = layout.source_bits + tokens * source * ElementBytes(geometry.dtype);
  layout.two_bits = layout.four_bits + tokens * CodeRowBytes(four, 4);
  layout.tile.codes_bytes = layout.two_bits + tokens * CodeRowBytes(two, 2);
  layout.tile.params.bytes = groups * (two + four) * kParamsBytes;
  layout.tile.row_bits.bytes = rows * geometry.RowBytes();
  layout.tile.positions.bytes = rows * kPositionBytes;
  const auto placed = Placed(layout.tile, geometry);
  if (!placed.has_value()) return std::nullopt;
  layout.tile = *placed;
  return layout;
}

uint32_t PatternBits(const Recipe& recipe) {
  return static_cast<uint32_t>(std::bit_width(recipe.patterns - 1U));
}

uint16_t CodedForm(const TileGeometry& geometry, const Recipe& recipe) {
  switch (recipe.id) {
    case RecipeId::kRaw:
      return kRawForm;
    case RecipeId::kKivi:
    case RecipeId::kOtt:
    case RecipeId::kLogQuant:
      return AffineForm(recipe.bits);
    case RecipeId::kArkv:
      return recipe.NeedsPlan() ? kKeptForm : AffineForm(recipe.bits);
    case RecipeId::kExact:
      return kStripsForm;
    case RecipeId::kCairn:
      return kStepStripsForm;
    case RecipeId::kPatternkv:
      return PatternedForm(recipe.bits);
    case RecipeId::kFp8:
      return kFp8Form;
    case RecipeId::kCairnHot:
      return kHotForm;
    case RecipeId::kMixKvq:
      return geometry.IsPerChannel() ? kMixedForm : AffineForm(recipe.bits);
  }
  return kRawForm;
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
  if (form == kRawForm) {
    if (rows != 0) return std::nullopt;
    return RawLayout(geometry);
  }
  if (!geometry.IsCodable() || rows > geometry.rows || form != CodedForm(geometry, recipe)) {
    return std::nullopt;
  }
  switch (LayoutIdOf(form)) {
    case TileLayoutId::kRaw:
      return std::nullopt;
    case TileLayoutId::kAffine:
    case TileLayoutId::kPatterned:
      return AffineLayout(geometry, recipe, rows);
    case TileLayoutId::kStrips:
      return StripsLayout(geometry, rows, 0, bytes);
    case TileLayoutId::kStepStrips:
      return StripsLayout(geometry, rows, geometry.rows, bytes);
    case TileLayoutId::kKept:
      return KeptLayout(geometry, rows, bytes);
    case TileLayoutId::kFp8:
      return Fp8Layout(geometry, rows);
    case TileLayoutId::kHot:
      return HotLayout(geometry, rows, bytes);
    case TileLayoutId::kMixed:
      return MixedBounds(geometry, bytes);
  }
  return std::nullopt;
}

}  // namespace cairn::codecs
