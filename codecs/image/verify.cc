// SPDX-License-Identifier: Apache-2.0
#include "codecs/checksum/checksum.h"
#include "codecs/forms/rows.h"
#include "codecs/image/tiles.h"

namespace cairn::codecs {

Error VerifyStored(const StoredTile& tile) { return VerifyStored(tile, Crc32c(tile.content)); }

Error VerifyStored(const StoredTile& tile, uint32_t crc) {
  if (crc != tile.entry.crc) return Error::kBadChecksum;
  if (!HasCleanPadding(tile.layout, tile.content.data())) return Error::kBadPadding;
  return FormOf(tile.entry.form)->verify(tile);
}

Error VerifyTile(const ImageView& view, uint32_t index) {
  return view.is_shared() ? Error::kMismatch : VerifyStored(StoredTileOf(view, index));
}

Error VerifyTiles(const ImageView& view, const Slice& slice) {
  if (slice.IsEmpty() || !view.spec().slice.Contains(slice)) return Error::kInvalidSlice;
  return view.tiling().ForEach(slice, [&](uint32_t index) { return VerifyTile(view, index); });
}

Error VerifyTiles(const ImageView& view) { return VerifyTiles(view, view.spec().slice); }

}  // namespace cairn::codecs
