// SPDX-License-Identifier: Apache-2.0
#include "codecs/checksum/checksum.h"
#include "codecs/forms/rows.h"
#include "codecs/image/tiles.h"

namespace cairn::codecs {

namespace {

Error VerifyWith(Error (*verify)(const StoredTile& tile), const StoredTile& tile, uint32_t crc) {
  if (crc != tile.entry.crc) return Error::kBadChecksum;
  if (!HasCleanPadding(tile.layout, tile.content.data())) return Error::kBadPadding;
  return verify(tile);
}

}  // namespace

Error VerifyDecoded(const StoredTile& tile, uint32_t crc) {
  const Form& form = *FormOf(tile.entry.form);
  return VerifyWith(form.verify_decoded != nullptr ? form.verify_decoded : form.verify, tile, crc);
}

Error VerifyTile(const ImageView& view, uint32_t index) {
  if (view.is_shared()) return Error::kMismatch;
  const StoredTile tile = StoredTileOf(view, index);
  return VerifyWith(FormOf(tile.entry.form)->verify, tile, Crc32c(tile.content));
}

Error VerifyTiles(const ImageView& view, const Slice& slice) {
  if (slice.IsEmpty() || !view.spec().slice.Contains(slice)) return Error::kInvalidSlice;
  return view.tiling().ForEach(slice, [&](uint32_t index) { return VerifyTile(view, index); });
}

Error VerifyTiles(const ImageView& view) { return VerifyTiles(view, view.spec().slice); }

}  // namespace cairn::codecs
