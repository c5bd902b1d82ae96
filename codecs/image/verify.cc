// SPDX-License-Identifier: Apache-2.0
#include "codecs/checksum/checksum.h"
#include "codecs/format/tile_layout.h"
#include "codecs/forms/fp8.h"
#include "codecs/forms/hot.h"
#include "codecs/forms/kept.h"
#include "codecs/forms/mixed.h"
#include "codecs/forms/patterned.h"
#include "codecs/forms/steps.h"
#include "codecs/forms/strips.h"
#include "codecs/image/image.h"
#include "codecs/pack/dense.h"
#include "codecs/stages/select/log_rows.h"
#include "codecs/stages/select/min_norm.h"
#include "codecs/stages/select/scores.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// After a section.
bool HasCleanPadding(const TileLayout& layout, const std::byte* tile) {
  if (!IsZero(tile + layout.content_bytes, layout.bytes - layout.content_bytes)) return false;
  return layout.side_offset == 0 ||
         IsZero(tile + layout.codes_bytes, layout.side_offset - layout.codes_bytes);
}

// Minima are finite and not -0, ranges finite and not negative.
bool HasValidParams(const TileLayout& layout, const std::byte* tile) {
  const std::byte* params = tile + layout.params.offset;
  uint32_t faults = 0;
  for (uint64_t i = 0; i < layout.params.bytes; i += 4) {
    const auto pair = Load<uint32_t>(params + i);
    faults |= (pair & 0x7C00) == 0x7C00 ? 1 : 0;
    faults |= (pair & 0xFFFF) == 0x8000 ? 1 : 0;
    faults |= (pair >> 16) >= 0x7C00 ? 1 : 0;
  }
  return faults == 0;
}

// Positions ascend and are tokens of the tile.
bool HasValidRows(const TileGeometry& geometry, const TileEntry& entry, const TileLayout& layout,
                  const std::byte* tile) {
  int32_t previous = -1;
  for (uint32_t i = 0; i < entry.rows; ++i) {
    const auto position = Load<uint16_t>(tile + layout.positions.offset + 2 * uint64_t{i});
    if (position <= previous || position >= geometry.rows) return false;
    previous = position;
  }
  return true;
}

bool HasValidChain(const TileLayout& layout, const std::byte* tile) {
  ChainHead chain;
  return layout.chain.bytes == 0 || LoadChain(U8(tile) + layout.chain.offset, &chain);
}

// Of arkv, those that its K has; of others there are none.
bool HasValidScores(const ImageSpec& spec, const TileEntry& entry, const TileLayout& layout,
                    const std::byte* tile) {
  return layout.scales.bytes == 0 ||
         AreScores(spec.first_position, spec.tokens, U8(tile) + layout.scales.offset,
                   U8(tile) + layout.positions.offset, entry.rows);
}

}  // namespace

Error VerifyTile(const ImageView& view, uint32_t index) {
  const TileEntry entry = view.Tile(index);
  const std::span<const std::byte> content = view.TileContent(index);
  if (Crc32c(content) != entry.crc) return Error::kBadChecksum;
  const ImageSpec& spec = view.spec();
  const TileGeometry geometry = GeometryOf(spec, index % PlaneCount(spec.tile.kind));
  const auto layout = LayoutOf(geometry, spec.recipe, entry.form, entry.rows, entry.bytes);
  if (!layout.has_value()) return Error::kBadTile;
  if (!HasCleanPadding(*layout, content.data())) return Error::kBadPadding;
  switch (LayoutIdOf(entry.form)) {
    case TileLayoutId::kRaw:
      return Error::kOk;
    case TileLayoutId::kStrips:
      return VerifyStrips(geometry, spec.recipe, content);
    case TileLayoutId::kStepStrips:
      return VerifyStepStrips(geometry, content, entry.rows);
    case TileLayoutId::kFp8:
      return HasValidFp8(*layout, content) && HasValidRows(geometry, entry, *layout, content.data())
                 ? Error::kOk
                 : Error::kBadTile;
    case TileLayoutId::kKept:
      return HasValidFp8(*layout, content) &&
                     HasValidRows(geometry, entry, *layout, content.data()) &&
                     HasValidMap(geometry, *layout, entry.rows, U8(content.data()))
                 ? Error::kOk
                 : Error::kBadTile;
    case TileLayoutId::kMixed: {
      const auto mixed = CheckMixed(geometry, spec.recipe, entry.rows, content);
      const bool is_valid = mixed.has_value() && HasCleanPadding(*mixed, content.data()) &&
                            HasValidParams(*mixed, content.data()) &&
                            HasValidRows(geometry, entry, *mixed, content.data());
      return is_valid ? Error::kOk : Error::kBadTile;
    }
    case TileLayoutId::kHot:
      if (!HasCleanHot(geometry, *layout, U8(content.data()))) return Error::kBadPadding;
      return HasValidRows(geometry, entry, *layout, content.data()) ? Error::kOk : Error::kBadTile;
    case TileLayoutId::kPatterned:
      if (!HasValidPatterns(geometry, spec.recipe, *layout, U8(content.data()))) {
        return Error::kBadTile;
      }
      break;
    case TileLayoutId::kAffine:
      break;
  }
  if (!AreCodeRowsClean(U8(content.data()), geometry.rows, geometry.dim, spec.recipe.bits)) {
    return Error::kBadPadding;
  }
  const bool is_valid = HasValidParams(*layout, content.data()) &&
                        HasValidChain(*layout, content.data()) &&
                        (spec.recipe.id == RecipeId::kLogQuant
                             ? AreLogRows(spec.recipe, geometry.rows, spec.first_position,
                                          U8(content.data()) + layout->positions.offset, entry.rows)
                             : HasValidRows(geometry, entry, *layout, content.data())) &&
                        HasValidScores(spec, entry, *layout, content.data());
  return is_valid ? Error::kOk : Error::kBadTile;
}

Error VerifyTiles(const ImageView& view, const Slice& slice) {
  if (slice.IsEmpty() || !view.spec().slice.Contains(slice)) return Error::kInvalidSlice;
  const uint32_t planes = PlaneCount(view.spec().tile.kind);
  for (uint32_t layer = 0; layer < slice.layer_count; ++layer) {
    // The tiles of a layer's heads are adjacent.
    const uint32_t first =
        view.IndexOf({static_cast<uint16_t>(slice.layer_first + layer), slice.head_first, 0});
    for (uint32_t i = 0; i < slice.head_count * planes; ++i) {
      if (const Error error = VerifyTile(view, first + i); error != Error::kOk) return error;
    }
  }
  return Error::kOk;
}

Error VerifyTiles(const ImageView& view) { return VerifyTiles(view, view.spec().slice); }

}  // namespace cairn::codecs
