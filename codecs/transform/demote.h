// SPDX-License-Identifier: Apache-2.0
#pragma once
// Recodes an image to a recipe of fewer bits, without its source.
//
// Thread-safety: Thread-safe. Nothing allocates, keeps a pointer or throws.

#include <cstddef>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "codecs/recipe/recipe.h"
#include "codecs/side/profile.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Writes the image in another recipe. Only these conversions are possible; all others return
// kNotDemotable:
//
// - To the image's own recipe: a copy.
// - From raw or exact to any recipe: the bytes of Encode() of the source, without inputs.
// - From kivi:b to fewer bits: the bytes of Encode() of the source, by integer operations on the
//   codes.
// - From ott:b, logquant:b or patternkv:b to fewer bits: the same, but raw tiles stay raw.
// - From kivi:b+ to fewer bits and a +: codes are narrowed within the image's ranges, and rows
//   stay. Encoding the source might choose narrower ranges.
//
// Arguments:
//
// - view: parsed and verified.
// - target: DemoteBytesMax() suffices (else kTargetTooSmall). It may not overlap view. Bytes after
//   the new image are unspecified.
// - bytes: the size of the new image; set on kOk.
//
// Other errors: kBadTile if Decode() would refuse a stream.
Error Demote(const Backend& backend, const ImageView& view, const Recipe& recipe,
             std::span<std::byte> target, size_t* bytes);

// Returns true if Demote() or DemoteSteps() can recode images of recipe `from` to recipe `to`.
// Recipes that need a profile or a bank may lack what SetRecipe() adds.
[[nodiscard]] bool IsDemotable(const Recipe& from, const Recipe& to);

// Returns true if the raw tiles of an image stay raw in every conversion from this recipe.
[[nodiscard]] bool KeepsRawTiles(const Recipe& from);

// Returns MaxImageBytes() of the view's spec. If `recipe` can only be encoded from source elements,
// adds room to decode one tile.
[[nodiscard]] uint64_t DemoteBytesMax(const ImageView& view, const Recipe& recipe);

// Writes an image of cairn at a higher level: the bytes of Encode() of the source, except that raw
// strips and raw tiles stay raw. MaxImageBytes() suffices for the target. Errors: kNotDemotable
// (the image is not of cairn; `level` is not above the image's level, or exceeds kStepLevelMax; or
// a strip would not become smaller than raw, which happens with a wrong profile), kNoProfile,
// kBadTile, kTargetTooSmall.
Error DemoteSteps(const ImageView& view, const Profile& profile, uint32_t level,
                  std::span<std::byte> target, size_t* bytes);

}  // namespace cairn::codecs
