// SPDX-License-Identifier: Apache-2.0
#include "codecs/transform/thin.h"

#include <cstring>

#include "codecs/checksum/checksum.h"
#include "codecs/image/tiles.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/stages/select/log_rows.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

Error ThinTile(const StoredTile& from, uint64_t chain_tokens, ImageWriter* writer) {
  const uint64_t positions = from.layout.positions.offset;
  const std::byte* source = from.content.data();
  const uint32_t rows = CountLogRows(*from.recipe, from.first_position, chain_tokens,
                                     U8(source) + positions, from.entry.rows);
  const auto to = LayoutOf(from.geometry, *from.recipe, from.entry.form, rows);
  if (!to.has_value()) return Error::kNotDemotable;
  const std::span<std::byte> tile = writer->Reserve(to->bytes);
  if (tile.empty()) return Error::kTargetTooSmall;
  std::memcpy(tile.data(), source, to->row_bits.offset + to->row_bits.bytes);
  std::memcpy(tile.data() + to->positions.offset, source + positions, to->positions.bytes);
  std::memset(tile.data() + to->content_bytes, 0, to->bytes - to->content_bytes);
  writer->Commit(to->bytes, Crc32c(tile), rows, from.entry.form);
  return Error::kOk;
}

}  // namespace

Error Thin(const Backend& backend, const ImageView& view, uint64_t chain_tokens,
           std::span<std::byte> target, size_t* bytes) {
  const FloatGuard guard;
  const ImageSpec& spec = view.spec();
  if (!spec.recipe.Traits().has_ageing_rows) return Error::kNotDemotable;
  if (target.size() < PrefixBytes(view.tile_count())) return Error::kTargetTooSmall;
  ImageWriter writer(spec, target);
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const StoredTile tile = StoredTileOf(view, i);
    Error error = Error::kOk;
    if (tile.entry.form == kRawForm) {
      // It stores the bits of the source.
      TileSource source{tile.geometry, U8(tile.content.data()), spec.first_position};
      source.chain_tokens = chain_tokens;
      error = EncodeTile(backend, spec.recipe, source, &writer);
    } else {
      error = ThinTile(tile, chain_tokens, &writer);
    }
    if (error != Error::kOk) return error;
  }
  *bytes = writer.Finish();
  return Error::kOk;
}

}  // namespace cairn::codecs
