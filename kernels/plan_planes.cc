// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan_planes.h"

#include <algorithm>
#include <limits>

#include "codecs/format/tile_layout.h"
#include "codecs/forms/form.h"
#include "codecs/numbers/mixed.h"
#include "codecs/stages/select/log_rows.h"
#include "codecs/types/bytes.h"
#include "kernels/plan_side.h"

namespace cairn::kernels {

using codecs::Error;
using codecs::TileGeometry;

namespace {

// Returns the largest power of two, up to 16, that divides every row address and the row's size.
uint8_t AlignmentOf(const PagedView& view, const codecs::Slice& slice, const PagedPlane& plane,
                    uint64_t row_bytes) {
  uint64_t all = kUnitMax | row_bytes;
  if (view.page_count > 1) all |= plane.page_stride;
  if (view.page_tokens > 1) all |= plane.token_stride;
  if (slice.head_count > 1) all |= plane.head_stride;
  for (const std::byte* layer : plane.layers) all |= reinterpret_cast<uintptr_t>(layer);
  return static_cast<uint8_t>(all & -all);
}

Error CheckPlane(const PagedView& view, const codecs::Slice& slice, const TileGeometry& geometry,
                 uint32_t plane_index) {
  const PagedPlane& plane = view.At(plane_index);
  const auto is_null = [](const std::byte* layer) { return layer == nullptr; };
  if (plane.layers.size() != slice.layer_count || std::ranges::any_of(plane.layers, is_null) ||
      view.page_tokens == 0 || view.page_count == 0 ||
      view.page_count > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return Error::kInvalidShape;
  }
  // Elements are loaded and stored whole.
  if (AlignmentOf(view, slice, plane, geometry.RowBytes()) < codecs::ElementBytes(geometry.dtype)) {
    return Error::kInvalidShape;
  }
  const uint64_t last_slot = uint64_t{view.first_slot} + geometry.rows - 1;
  if (last_slot > std::numeric_limits<uint32_t>::max() ||
      last_slot / view.page_tokens >=
          (view.pages != nullptr ? view.page_entries : view.page_count)) {
    return Error::kTargetTooSmall;
  }
  uint64_t end = geometry.RowBytes();
  bool overflows = false;
  const auto add_axis = [&](uint64_t count, uint64_t stride) {
    uint64_t span = 0;
    overflows |= __builtin_mul_overflow(count - 1, stride, &span);
    overflows |= __builtin_add_overflow(end, span, &end);
  };
  add_axis(view.page_count, plane.page_stride);
  add_axis(view.page_tokens, plane.token_stride);
  add_axis(slice.head_count, plane.head_stride);
  return overflows || end > plane.layer_bytes ? Error::kTargetTooSmall : Error::kOk;
}

PlaneRecord RecordOf(const PagedView& view, const codecs::Slice& slice,
                     const codecs::Recipe& recipe, const TileGeometry& geometry,
                     uint32_t plane_index, uint32_t image) {
  const codecs::AffineTile tile = codecs::AffineOf(geometry, recipe);
  const PagedPlane& plane = view.At(plane_index);
  const auto row_bytes = static_cast<uint32_t>(geometry.RowBytes());
  PlaneRecord record{};
  record.pages = view.pages;
  record.page_stride = plane.page_stride;
  record.token_stride = plane.token_stride;
  record.page_count = view.page_count;
  record.page_tokens = view.page_tokens;
  record.first_slot = view.first_slot;
  record.tokens = geometry.rows;
  record.dim = geometry.dim;
  record.row_bytes = row_bytes;
  record.group = tile.group;
  record.image = image;
  record.token_bits = recipe.Traits().has_ageing_rows ? static_cast<uint16_t>(~codecs::kRowStays)
                                                      : uint16_t{0xFFFF};
  record.unit = AlignmentOf(view, slice, plane, row_bytes);
  record.is_v = !geometry.IsPerChannel();
  record.is_fast = recipe.is_fast;
  record.has_budget =
      static_cast<codecs::MixedVariant>(recipe.variant) == codecs::MixedVariant::kBudget;
  record.dtype = geometry.dtype;
  record.bits = tile.bits;
  record.level = recipe.level;
  record.multiplier = recipe.multiplier;
  record.patterns = recipe.patterns;
  return record;
}

}  // namespace

Error CheckView(const codecs::ImageSpec& spec, const codecs::Slice& slice, const PagedView& view,
                const std::byte* tiles) {
  if (!IsAligned(tiles) || !IsWhole(view.pages)) return Error::kInvalidShape;
  for (uint32_t plane = 0; plane < codecs::PlaneCount(spec.tile.kind); ++plane) {
    const TileGeometry geometry = codecs::GeometryOf(spec, plane);
    // Scales and positions follow the rows and are loaded whole, so a row must have an even size.
    if (!spec.recipe.IsLossless() && geometry.IsCodable() && geometry.RowBytes() % 2 != 0) {
      return Error::kInvalidShape;
    }
    const Error error = CheckPlane(view, slice, geometry, plane);
    if (error != Error::kOk) return error;
  }
  return Error::kOk;
}

PlaneRecords RecordsOf(const codecs::ImageSpec& spec, const codecs::Slice& slice,
                       const PagedView& view, uint32_t image) {
  PlaneRecords records{};
  for (uint32_t plane = 0; plane < codecs::PlaneCount(spec.tile.kind); ++plane) {
    const TileGeometry geometry = codecs::GeometryOf(spec, plane);
    records[plane] = RecordOf(view, slice, spec.recipe, geometry, plane, image);
    records[plane].first_position = spec.first_position;
  }
  return records;
}

TileTask TaskOfTile(const codecs::ImagePrefix& prefix, uint32_t index, const std::byte* image,
                    const codecs::DecodeInputs& side) {
  const codecs::ImageSpec& spec = prefix.spec();
  const codecs::TileId id = prefix.IdOf(index);
  const TileGeometry geometry = codecs::GeometryOf(spec, id.plane);
  const codecs::TileEntry entry = prefix.Tile(index);
  // Parsing has checked that the tile has a layout.
  const codecs::TileLayout layout =
      *codecs::LayoutOf(geometry, spec.recipe, entry.form, entry.rows, entry.bytes);
  // A form has only one of these parts.
  const codecs::TilePart& map = layout.kept_map.bytes != 0      ? layout.kept_map
                                : layout.corrections.bytes != 0 ? layout.corrections
                                                                : layout.pattern_index;
  const codecs::TilePart& params = layout.params.bytes != 0 ? layout.params : layout.scales;
  TileTask task{};
  task.source = codecs::U8(image) + entry.offset;
  task.bytes = entry.bytes;
  task.crc = entry.crc;
  task.params_at = static_cast<uint32_t>(params.offset);
  task.row_bits_at = static_cast<uint32_t>(layout.row_bits.offset);
  task.positions_at = static_cast<uint32_t>(layout.positions.offset);
  task.code_row_bytes = static_cast<uint32_t>(layout.codes_bytes / geometry.rows);
  task.map_at = static_cast<uint32_t>(map.offset);
  task.gate_at = layout.gate.bytes == 0 ? 0 : static_cast<uint32_t>(layout.gate.offset);
  task.coded_tokens = static_cast<uint32_t>(layout.scales.bytes / codecs::kScaleBytes);
  if (spec.recipe.NeedsSideObject()) task.head = HeadNumber(side, {id.layer, id.head});
  task.rows = entry.rows;
  return task;
}

uint8_t* BaseOf(const PagedView& view, const codecs::Slice& slice, const codecs::TileArea& area) {
  const PagedPlane& plane = view.At(area.plane_first);
  std::byte* layer = plane.layers[area.slice.layer_first - slice.layer_first];
  const auto head = static_cast<uint64_t>(area.slice.head_first - slice.head_first);
  return codecs::U8(layer) + head * plane.head_stride;
}

}  // namespace cairn::kernels
