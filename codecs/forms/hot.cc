// SPDX-License-Identifier: Apache-2.0
// Tiles of the recipe `cairn-hot`: static levels with a fixed width for each channel.
#include "codecs/forms/hot.h"

#include <cstring>

#include "codecs/backend/backend_operation.h"
#include "codecs/backend/hot_tile.h"
#include "codecs/checksum/checksum.h"
#include "codecs/forms/rows.h"
#include "codecs/forms/steps.h"
#include "codecs/pack/dense.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kStripsMax = kTokensPerBlockMax / kStripTokens;

// Computes row_bytes from the size of the tile.
std::optional<TileLayout> Layout(const TileGeometry& geometry, const Recipe&, uint32_t rows,
                                 uint64_t bytes) {
  const auto side = HotLayoutOf(geometry, 0, rows);
  if (!side.has_value() || bytes < side->bytes) return std::nullopt;
  return HotLayoutOf(geometry, (bytes - side->bytes) / geometry.rows, rows);
}

void AddStripRows(const StripTokens& rows, uint32_t strip, TilePlan* plan) {
  for (uint32_t token = 0; token < kStripTokens; ++token) {
    if (rows.Has(token)) plan->AddRow(strip * kStripTokens + token);
  }
}

Error Encode(const Backend& backend, const Recipe& recipe, const TileSource& source,
             ImageWriter* writer) {
  const TileGeometry& geometry = source.geometry;
  HotTile tile;
  MakeHotTile(*source.profile, source.at, geometry.PlaneIndex(), recipe.multiplier, geometry.dtype,
              &tile);
  const auto planned = HotLayoutOf(geometry, tile.row_bytes, 0);
  if (!planned.has_value()) return Error::kBadTile;
  const std::span<std::byte> room = writer->Reserve(planned->bytes);
  // A tile of V without rows whose channels have width 0 takes no bytes.
  if (room.size() != planned->bytes) return Error::kTargetTooSmall;
  TilePlan plan;
  uint8_t corrections[kStripsMax * HotCorrectionBytes(kProfileDimMax)];
  const uint32_t correction_bytes = HotCorrectionBytes(geometry.dim);
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    const uint64_t token = uint64_t{i} * kStripTokens;
    StripTokens rows = {};
    OperationOf<&Backend::encode_hot_strip>(backend)(
        tile, StepSourceOf(source, i), U8(room.data()) + token * tile.row_bytes,
        corrections + uint64_t{i} * correction_bytes, &rows);
    AddStripRows(rows, i, &plan);
  }
  const auto layout = HotLayoutOf(geometry, tile.row_bytes, plan.RowCount());
  if (!layout.has_value()) return Error::kBadTile;
  const std::span<std::byte> content = writer->Reserve(layout->bytes);
  if (content.size() != layout->bytes) return Error::kTargetTooSmall;
  std::memcpy(content.data() + layout->corrections.offset, corrections, layout->corrections.bytes);
  WriteRows(source, plan, *layout, content.data());
  writer->Commit(layout->bytes, Crc32c(content), plan.RowCount(), kHotForm);
  return Error::kOk;
}

bool Decode(const DecodeWork& work, const StoredTile& stored, uint8_t* target) {
  const TileGeometry& geometry = stored.geometry;
  const TileLayout& layout = stored.layout;
  const uint8_t* content = U8(stored.content.data());
  HotTile tile;
  MakeHotTile(*work.side.profile, stored.at, geometry.PlaneIndex(), stored.recipe->multiplier,
              geometry.dtype, &tile);
  if (uint64_t{tile.row_bytes} * geometry.rows != layout.codes_bytes) return false;
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    const uint64_t token = uint64_t{i} * kStripTokens;
    OperationOf<&Backend::decode_hot_strip>(work.backend)(
        {&tile, StripOf(geometry, {}, i).tokens, stored.first_position + token,
         content + token * tile.row_bytes,
         content + layout.corrections.offset + uint64_t{i} * HotCorrectionBytes(geometry.dim),
         target + StripSourceOffset(geometry, i), work.is_streamed, work.scratch});
  }
  OverlayRows(stored, layout, target);
  return true;
}

// Returns true if bits that belong to no code and no correction are 0.
bool HasCleanHot(const TileGeometry& geometry, const TileLayout& layout, const uint8_t* content) {
  // Rows have spare bits only if all widths are the largest.
  const bool has_spare =
      8 * layout.codes_bytes > uint64_t{kHotWidthMax} * geometry.dim * geometry.rows;
  const uint32_t strips = layout.corrections.bytes == 0 ? 0 : StripCount(geometry.rows);
  return (!has_spare || AreCodeRowsClean(content, geometry.rows, geometry.dim, kHotWidthMax)) &&
         AreCodeRowsClean(content + layout.corrections.offset, strips, geometry.dim, 4);
}

Error Verify(const StoredTile& tile) {
  if (!HasCleanHot(tile.geometry, tile.layout, U8(tile.content.data()))) return Error::kBadPadding;
  return HasValidRows(tile, tile.layout) ? Error::kOk : Error::kBadTile;
}

}  // namespace

std::optional<TileLayout> HotLayoutOf(const TileGeometry& geometry, uint64_t row_bytes,
                                      uint32_t rows) {
  const bool is_corrected = geometry.plane != Plane::kV;
  if (geometry.rows < kHotTokensMin || 8 * row_bytes >= kHotWidthMax * geometry.dim + 8) {
    return std::nullopt;
  }
  TileLayout layout = LayoutOfRows(geometry, rows);
  layout.codes_bytes = geometry.rows * row_bytes;
  layout.corrections.bytes =
      is_corrected ? StripCount(geometry.rows) * HotCorrectionBytes(geometry.dim) : 0;
  return PlaceParts(layout, geometry);
}

const Form forms::kHot = {"hot", Layout, Encode, Decode, Verify, nullptr};

}  // namespace cairn::codecs
