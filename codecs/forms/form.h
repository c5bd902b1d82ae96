// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tile forms. A form says where the parts of a tile lie, and how a tile is encoded, decoded,
// verified and narrowed. Each form is a file of this folder that fills in a Form. To add one, write
// the file and give it a line in codecs/types/form_id.h; CONTRIBUTING.md has the rest.
//
// Thread-safety: a Form is immutable; its functions are pure. Nothing allocates or throws.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "codecs/backend/backend.h"
#include "codecs/format/image_header.h"
#include "codecs/format/image_spec.h"
#include "codecs/format/tile_layout.h"
#include "codecs/side/decode_inputs.h"
#include "codecs/stages/stages.h"
#include "codecs/types/error.h"
#include "codecs/types/form_id.h"

namespace cairn::codecs {

class StepStripDecoder;
class StripDecoder;

// A tile of an image. Borrows the image.
struct StoredTile {
  TileGeometry geometry;
  ProfileHead at;               // layer and head in the group
  uint64_t first_position = 0;  // of its first token in the chain
  const Recipe* recipe = nullptr;
  TileEntry entry;
  std::span<const std::byte> content;
  TileLayout layout;  // LayoutOf() what stands above
};

// What the tiles of one call to Decode() share.
struct DecodeWork {
  const Backend& backend;
  const DecodeInputs& side;  // of the image: CheckCodableWith() is kOk
  bool is_streamed;          // targets are better written past the caches
  StepScratch* scratch;
  StripDecoder* strips;
  StepStripDecoder* steps;
};

struct Form {
  std::string_view name;

  // Where the parts of a tile lie; none where this recipe writes no such tile.
  //   bytes  of the tile as the directory has them; read only by forms whose size does not follow
  //          from the other arguments
  // REQUIRES: geometry.IsCodable() or the form is raw; rows <= geometry.rows.
  std::optional<TileLayout> (*layout)(const TileGeometry& geometry, const Recipe& recipe,
                                      uint32_t rows, uint64_t bytes);

  // Writes a tile. kBadTile, with nothing committed, where the tile has to be raw; kTargetTooSmall.
  Error (*encode)(const Backend& backend, const Recipe& recipe, const TileSource& source,
                  ImageWriter* writer);

  // Decodes a tile into `target`, of geometry.SourceBytes(). It stays in bounds whatever the tile
  // holds. Strips may be left for the Flush() of the work's decoders; content and target stay until
  // then. False where the tile is none that an encoder writes.
  bool (*decode)(const DecodeWork& work, const StoredTile& tile, uint8_t* target);

  // All that can be checked of a tile without side objects, besides its CRC and padding, which the
  // caller checked. kBadPadding, kBadTile.
  Error (*verify)(const StoredTile& tile);

  // Writes the tile as `recipe` codes it, made of its codes alone. Null where a form cannot.
  // kNotDemotable, kBadTile, kTargetTooSmall.
  Error (*narrow)(const Backend& backend, const DecodeInputs& side, const StoredTile& tile,
                  const Recipe& recipe, ImageWriter* writer);
};

// forms::kRaw, forms::kAffine, …: what stands in the list of codecs/types/form_id.h.
namespace forms {
#define CAIRN_FORM(name, ...) extern const Form k##name;
CAIRN_TILE_FORMS(CAIRN_FORM, CAIRN_FORM)
#undef CAIRN_FORM
}  // namespace forms

// The form of a directory entry; null where there is none such.
[[nodiscard]] const Form* FormOf(uint16_t form);

// None where the form is not one that this recipe writes for this tile.
//   bytes  of the tile as the directory has them: read where they are not known without it
[[nodiscard]] std::optional<TileLayout> LayoutOf(const TileGeometry& geometry, const Recipe& recipe,
                                                 uint16_t form, uint32_t rows, uint64_t bytes = 0);

// Writes the next tile: coded where the recipe makes it smaller than raw, else raw.
// kTargetTooSmall.
Error EncodeTile(const Backend& backend, const Recipe& recipe, const TileSource& source,
                 ImageWriter* writer);

}  // namespace cairn::codecs
