// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/tiles.h"

namespace cairn::codecs {

StoredTile StoredTileOf(const ImageView& view, uint32_t index) {
  const ImageSpec& spec = view.spec();
  StoredTile tile;
  const TileArea area = view.tiling().AreaOf(index);
  tile.geometry = GeometryOf(spec, area.plane_first);
  tile.at = {area.slice.layer_first, area.slice.head_first};
  tile.first_position = spec.first_position;
  tile.recipe = &spec.recipe;
  tile.entry = view.Tile(index);
  tile.content = view.TileContent(index);
  tile.behind = tile.content.data() + tile.content.size();
  // Parsing has checked that the tile has a layout.
  tile.layout =
      *LayoutOf(tile.geometry, spec.recipe, tile.entry.form, tile.entry.rows, tile.entry.bytes);
  return tile;
}

}  // namespace cairn::codecs
