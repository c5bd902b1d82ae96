// SPDX-License-Identifier: Apache-2.0
#include "codecs/transform/thin.h"

#include <cstring>

#include "codecs/checksum/checksum.h"
#include "codecs/forms/tile_encode.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/stages/select/log_rows.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

Error ThinTile(const ImageView& view, uint32_t index, const TileGeometry& geometry,
               uint64_t chain_tokens, ImageWriter* writer) {
  const ImageSpec& spec = view.spec();
  const TileEntry entry = view.Tile(index);
  const std::byte* source = view.TileContent(index).data();
  const auto from = LayoutOf(geometry, spec.recipe, entry.form, entry.rows);
  if (!from.has_value()) return Error::kNotDemotable;
  const uint32_t rows = CountLogRows(spec.recipe, spec.first_position, chain_tokens,
                                     U8(source) + from->positions.offset, entry.rows);
  const auto to = LayoutOf(geometry, spec.recipe, entry.form, rows);
  if (!to.has_value()) return Error::kNotDemotable;
  const std::span<std::byte> tile = writer->Reserve(to->bytes);
  if (tile.empty()) return Error::kTargetTooSmall;
  std::memcpy(tile.data(), source, to->row_bits.offset + to->row_bits.bytes);
  std::memcpy(tile.data() + to->positions.offset, source + from->positions.offset,
              to->positions.bytes);
  std::memset(tile.data() + to->content_bytes, 0, to->bytes - to->content_bytes);
  writer->Commit(to->bytes, Crc32c(tile), rows, entry.form);
  return Error::kOk;
}

}  // namespace

Error Thin(const Backend& backend, const ImageView& view, uint64_t chain_tokens,
           std::span<std::byte> target, size_t* bytes) {
  const FloatGuard guard;
  const ImageSpec& spec = view.spec();
  if (spec.recipe.id != RecipeId::kLogQuant) return Error::kNotDemotable;
  if (target.size() < PrefixBytes(view.tile_count())) return Error::kTargetTooSmall;
  ImageWriter writer(spec, target);
  const uint32_t planes = PlaneCount(spec.tile.kind);
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const TileGeometry geometry = GeometryOf(spec, i % planes);
    Error error = Error::kOk;
    if (view.Tile(i).form == kRawForm) {
      // Its bits are the source's.
      TileSource tile{geometry, U8(view.TileContent(i).data()), spec.first_position};
      tile.chain_tokens = chain_tokens;
      error = EncodeTile(backend, spec.recipe, tile, &writer);
    } else {
      error = ThinTile(view, i, geometry, chain_tokens, &writer);
    }
    if (error != Error::kOk) return error;
  }
  *bytes = writer.Finish();
  return Error::kOk;
}

}  // namespace cairn::codecs
