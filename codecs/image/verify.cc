// SPDX-License-Identifier: Apache-2.0
#include "codecs/checksum/checksum.h"
#include "codecs/forms/rows.h"
#include "codecs/image/tiles.h"

namespace cairn::codecs {

Error VerifyTile(const ImageView& view, uint32_t index) {
  const StoredTile tile = StoredTileOf(view, index);
  if (Crc32c(tile.content) != tile.entry.crc) return Error::kBadChecksum;
  if (!HasCleanPadding(tile.layout, tile.content.data())) return Error::kBadPadding;
  return FormOf(tile.entry.form)->verify(tile);
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
