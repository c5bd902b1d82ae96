// SPDX-License-Identifier: Apache-2.0
#include "codecs/forms/hot.h"

#include <cstring>

#include "codecs/backend/backend_step.h"
#include "codecs/checksum/checksum.h"
#include "codecs/forms/steps.h"
#include "codecs/forms/tile_encode.h"
#include "codecs/pack/dense.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kStripsMax = kTokensPerBlockMax / kStripTokens;

void AddStripRows(const StripTokens& rows, uint32_t strip, TilePlan* plan) {
  for (uint32_t token = 0; token < kStripTokens; ++token) {
    if (rows.Has(token)) plan->AddRow(strip * kStripTokens + token);
  }
}

}  // namespace

Error EncodeHot(const Backend& backend, const Recipe& recipe, const TileSource& source,
                ImageWriter* writer) {
  const TileGeometry& geometry = source.geometry;
  HotTile tile;
  MakeHotTile(*source.profile, source.at, geometry.PlaneIndex(), recipe.multiplier, geometry.dtype,
              &tile);
  const auto planned = HotLayoutOf(geometry, tile.row_bytes, 0);
  if (!planned.has_value()) return Error::kBadTile;
  const std::span<std::byte> room = writer->Reserve(planned->bytes);
  // A tile of V whose channels have no width and that has no rows takes no bytes.
  if (room.size() != planned->bytes) return Error::kTargetTooSmall;
  TilePlan plan;
  uint8_t corrections[kStripsMax * HotCorrectionBytes(kProfileDimMax)];
  const uint32_t correction_bytes = HotCorrectionBytes(geometry.dim);
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    const uint64_t token = uint64_t{i} * kStripTokens;
    StripTokens rows;
    StepOf<&Backend::encode_hot_strip>(backend)(
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

bool DecodeHot(const Backend& backend, const ImageSpec& spec, uint32_t index,
               const Profile& profile, const TileLayout& layout, const uint8_t* content,
               bool is_streamed, StepScratch* scratch, uint8_t* target) {
  const TileGeometry geometry = GeometryOf(spec, index % PlaneCount(spec.tile.kind));
  HotTile tile;
  MakeHotTile(profile, HeadOf(spec, index), geometry.PlaneIndex(), spec.recipe.multiplier,
              geometry.dtype, &tile);
  if (uint64_t{tile.row_bytes} * geometry.rows != layout.codes_bytes) return false;
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    const uint64_t token = uint64_t{i} * kStripTokens;
    StepOf<&Backend::decode_hot_strip>(backend)(
        {&tile, StripOf(geometry, {}, i).tokens, spec.first_position + token,
         content + token * tile.row_bytes,
         content + layout.corrections.offset + uint64_t{i} * HotCorrectionBytes(geometry.dim),
         target + StripSourceOffset(geometry, i), is_streamed, scratch});
  }
  return true;
}

bool HasCleanHot(const TileGeometry& geometry, const TileLayout& layout, const uint8_t* content) {
  // Rows have bits to spare only where all widths are the largest.
  const bool has_spare =
      8 * layout.codes_bytes > uint64_t{kHotWidthMax} * geometry.dim * geometry.rows;
  const uint32_t strips = layout.corrections.bytes == 0 ? 0 : StripCount(geometry.rows);
  return (!has_spare || AreCodeRowsClean(content, geometry.rows, geometry.dim, kHotWidthMax)) &&
         AreCodeRowsClean(content + layout.corrections.offset, strips, geometry.dim, 4);
}

}  // namespace cairn::codecs
