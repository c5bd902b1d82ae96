// SPDX-License-Identifier: Apache-2.0
#pragma once
// The spec of an image, which its header stores, and the entry of a tile in the image's directory.
// docs/internals/formats/image.md shows the layout.
//
// Thread-safety: values; functions are Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>

#include "codecs/format/tiling.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/error.h"
#include "codecs/types/form_id.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {

inline constexpr uint32_t kImageMagic = 0x49564B43;  // "CKVI"
inline constexpr uint16_t kImageVersion = 1;
inline constexpr size_t kHeaderBytes = 320;
inline constexpr size_t kDirectoryEntryBytes = 16;
inline constexpr size_t kSideObjectsMax = 4;

using Digest = std::array<uint8_t, 32>;

// How K is transformed before it is coded. Values are part of the image format.
enum class Domain : uint8_t { kAsWritten = 0, kBeforeRope = 1, kBasis = 2 };

// The content of an image and the parameters of its coding. An encoder takes it; the header stores
// all of it.
struct ImageSpec {
  Digest space{};
  Digest key{};
  uint16_t group = 0;  // index in the space's geometry
  TileShape tile;
  Slice slice;
  uint16_t tokens = 0;  // 1..kTokensPerBlockMax
  // Position of the block's first token in its chain. In kivi:b+, token 0 of a chain is kept
  // exactly.
  uint64_t first_position = 0;
  Recipe recipe;
  Domain domain = Domain::kAsWritten;
  uint8_t side_object_count = 0;  // number of entries of side_objects: 1 if the recipe has a side
                                  // object, else 0
  std::array<Digest, kSideObjectsMax> side_objects{};
  CodingUnit unit{};
  uint8_t symbol_mode = 0;  // how forms turn codes into symbols; 0: as docs/recipes say
  friend bool operator==(const ImageSpec&, const ImageSpec&) = default;
};

// Sets the side object of *spec, or none if `id` is null.
inline void NameSideObject(const Digest* id, ImageSpec* spec) {
  spec->side_object_count = id != nullptr ? 1 : 0;
  spec->side_objects = {};
  if (id != nullptr) spec->side_objects[0] = *id;
}

// Checks a spec. Errors: kInvalidShape, kInvalidSlice, kUnknownRecipe, kTooLarge (MaxImageBytes()
// or the tile count), kUnknownUnit (a unit other than 1 x 1 x 1, or a symbol mode other than 0).
Error Validate(const ImageSpec& spec);

// Sets *bytes to the size of an image of this spec whose tiles are all raw. No image of this spec
// is larger. Errors: those of Validate().
Error MaxImageBytes(const ImageSpec& spec, uint64_t* bytes);

[[nodiscard]] inline Tiling TilingOf(const ImageSpec& spec) {
  return {spec.tile.kind, spec.slice, spec.unit};
}

// A directory entry that has been checked: the tile lies inside the image. Its size is the size
// that form and rows determine or, for strips, within their bounds.
struct TileEntry {
  uint64_t offset = 0;  // from the image's first byte; a multiple of 16
  uint32_t bytes = 0;   // includes padding; a multiple of 16
  uint32_t crc = 0;     // CRC32C of those bytes
  uint16_t rows = 0;    // tokens kept at full precision
  uint16_t form = kRawForm;
};

}  // namespace cairn::codecs
