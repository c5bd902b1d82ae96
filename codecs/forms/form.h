// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tile forms. A form defines the layout of a tile, and how such a tile is encoded, decoded,
// verified and narrowed. Each form is a file of this folder that fills in a Form. To add a form,
// write the file and add a line to codecs/types/form_id.h; CONTRIBUTING.md describes the other
// steps.
//
// Thread-safety: a Form is immutable; its functions are pure. They do not allocate or throw.

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
  uint64_t first_position = 0;  // position of the tile's first token in the chain
  const Recipe* recipe = nullptr;
  TileEntry entry;
  std::span<const std::byte> content;
  // The memory that is probably read next. Decoders only prefetch it.
  const std::byte* behind = nullptr;
  TileLayout layout;  // result of LayoutOf() for the members above
};

// The inputs and caches that the tiles of one call to Decode() share.
struct DecodeWork {
  const Backend& backend;
  const DecodeInputs& side;  // the image's inputs; REQUIRES: CheckCodableWith() is kOk
  bool is_streamed;          // bypass the caches when writing targets
  StepScratch* scratch;
  StripDecoder* strips;
  StepStripDecoder* steps;
};

struct Form {
  std::string_view name;

  // Computes the layout of a tile. Returns nullopt if this recipe writes no such tile.
  //   bytes  the tile's size in the directory; used only by forms whose size does not follow from
  //          the other arguments
  // REQUIRES: geometry.IsCodable() or the form is raw; rows <= geometry.rows.
  std::optional<TileLayout> (*layout)(const TileGeometry& geometry, const Recipe& recipe,
                                      uint32_t rows, uint64_t bytes);

  // Encodes a tile. Errors: kBadTile (the tile must be stored raw; nothing was committed),
  // kTargetTooSmall.
  Error (*encode)(const Backend& backend, const Recipe& recipe, const TileSource& source,
                  ImageWriter* writer);

  // Decodes a tile into `target`, which has geometry.SourceBytes(). Never writes outside the
  // target, whatever the tile contains. Strips may be decoded only later, in Flush() of the
  // decoders in `work`; content and target must stay valid until then. Returns false if no encoder
  // writes such a tile.
  bool (*decode)(const DecodeWork& work, const StoredTile& tile, uint8_t* target);

  // Checks everything in a tile that can be checked without a side object. REQUIRES: the caller has
  // checked its CRC and the padding after its sections. Errors: kBadPadding, kBadTile.
  Error (*verify)(const StoredTile& tile);

  // Recodes a tile to `recipe` using only its codes. Null if the form cannot do this. Errors:
  // kNotDemotable, kBadTile, kTargetTooSmall.
  Error (*narrow)(const Backend& backend, const DecodeInputs& side, const StoredTile& tile,
                  const Recipe& recipe, ImageWriter* writer);

  // Does the same as verify for a tile that the caller also decodes, without the checks that
  // decode() makes. Null: verify is used.
  Error (*verify_decoded)(const StoredTile& tile) = nullptr;
};

// forms::kRaw, forms::kAffine, …: a Form for each line of codecs/types/form_id.h.
namespace forms {
#define CAIRN_FORM(name, ...) extern const Form k##name;
CAIRN_TILE_FORMS(CAIRN_FORM, CAIRN_FORM)
#undef CAIRN_FORM
}  // namespace forms

// Returns the form with the number in a directory entry; null if there is none.
[[nodiscard]] const Form* FormOf(uint16_t form);

// Returns the layout of a tile, or nullopt if this recipe does not write such a tile in this form.
// bytes the tile's size in the directory; used only if it does not follow from the other arguments
[[nodiscard]] std::optional<TileLayout> LayoutOf(const TileGeometry& geometry, const Recipe& recipe,
                                                 uint16_t form, uint32_t rows, uint64_t bytes = 0);

// Writes the next tile: coded if that is smaller than raw, otherwise raw. Errors: kTargetTooSmall.
Error EncodeTile(const Backend& backend, const Recipe& recipe, const TileSource& source,
                 ImageWriter* writer);

}  // namespace cairn::codecs
