// SPDX-License-Identifier: Apache-2.0
#include "codecs/hot.h"

#include <algorithm>
#include <cstring>

#include "codecs/bytes.h"
#include "codecs/checksum.h"
#include "codecs/reference/hot.h"
#include "codecs/step_strips.h"
#include "codecs/tile_encode.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kStripsMax = kTokensPerBlockMax / kStripTokens;

uint32_t PlaneIndexOf(const TileGeometry& geometry) { return geometry.plane == Plane::kV ? 1 : 0; }

uint32_t StripTokensAt(const TileGeometry& geometry, uint32_t strip) {
  return std::min(geometry.rows - strip * kStripTokens, kStripTokens);
}

void AddStripRows(const StripTokens& rows, uint32_t strip, TilePlan* plan) {
  for (uint32_t token = 0; token < kStripTokens; ++token) {
    if (rows.Has(token)) plan->AddRow(strip * kStripTokens + token);
  }
}

}  // namespace

Error EncodeHot(const Recipe& recipe, const TileSource& source, ImageWriter* writer) {
  const TileGeometry& geometry = source.geometry;
  HotTile tile;
  MakeHotTile(*source.profile, source.at, PlaneIndexOf(geometry), recipe.multiplier, geometry.dtype,
              &tile);
  const auto planned = HotLayoutOf(geometry, tile.row_bytes, 0);
  if (!planned.has_value()) return Error::kBadTile;
  const std::span<std::byte> room = writer->Reserve(planned->bytes);
  if (room.empty()) return Error::kTargetTooSmall;
  uint64_t v_bytes = 0;  // of a token of V
  if (source.v != nullptr) {
    v_bytes = uint64_t{source.profile->Dim(1)} * ElementBytes(geometry.dtype);
  }
  TilePlan plan;
  uint8_t corrections[kStripsMax * HotCorrectionBytes(kProfileDimMax)];
  const uint32_t correction_bytes = HotCorrectionBytes(geometry.dim);
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    const uint64_t token = uint64_t{i} * kStripTokens;
    StepSource strip;
    strip.tokens = StripTokensAt(geometry, i);
    strip.position = source.first_position + token;
    strip.bytes = source.bytes + token * geometry.RowBytes();
    if (source.v != nullptr) strip.v = source.v + token * v_bytes;
    StripTokens rows;
    reference::EncodeHotStrip(tile, strip, U8(room.data()) + token * tile.row_bytes,
                              corrections + uint64_t{i} * correction_bytes, &rows);
    AddStripRows(rows, i, &plan);
  }
  const auto layout = HotLayoutOf(geometry, tile.row_bytes, plan.RowCount());
  if (!layout.has_value()) return Error::kBadTile;
  const std::span<std::byte> content = writer->Reserve(layout->bytes);
  if (content.empty()) return Error::kTargetTooSmall;
  std::memcpy(content.data() + layout->corrections.offset, corrections, layout->corrections.bytes);
  WriteRows(source, plan, *layout, content.data());
  writer->Commit(layout->bytes, Crc32c(content), plan.RowCount(), kHotForm);
  return Error::kOk;
}

bool DecodeHot(const ImageSpec& spec, uint32_t index, const Profile& profile,
               const TileLayout& layout, const uint8_t* content, uint8_t* target) {
  const TileGeometry geometry = GeometryOf(spec, index % PlaneCount(spec.tile.kind));
  HotTile tile;
  MakeHotTile(profile, HeadOf(spec, index), PlaneIndexOf(geometry), spec.recipe.multiplier,
              geometry.dtype, &tile);
  if (uint64_t{tile.row_bytes} * geometry.rows != layout.codes_bytes) return false;
  for (uint32_t i = 0; i < StripCount(geometry.rows); ++i) {
    const uint64_t token = uint64_t{i} * kStripTokens;
    reference::DecodeHotStrip(
        tile, StripTokensAt(geometry, i), spec.first_position + token,
        content + token * tile.row_bytes,
        content + layout.corrections.offset + uint64_t{i} * HotCorrectionBytes(geometry.dim),
        target + token * geometry.RowBytes());
  }
  return true;
}

bool HasCleanHot(const TileGeometry& geometry, const TileLayout& layout, const uint8_t* content) {
  uint32_t faults = 0;
  const uint64_t row_bytes = layout.codes_bytes / geometry.rows;
  if (const uint32_t bits_max = kHotWidthMax * geometry.dim; 8 * row_bytes > bits_max) {
    // All widths are the largest.
    for (uint32_t token = 0; token < geometry.rows; ++token) {
      faults |= content[(token + 1) * row_bytes - 1] >> (bits_max % 8);
    }
  }
  if (geometry.dim % 2 != 0) {
    const uint32_t bytes = HotCorrectionBytes(geometry.dim);
    for (uint64_t end = bytes; end <= layout.corrections.bytes; end += bytes) {
      faults |= content[layout.corrections.offset + end - 1] >> 4;
    }
  }
  return faults == 0;
}

}  // namespace cairn::codecs
