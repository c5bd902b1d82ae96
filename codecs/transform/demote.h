// SPDX-License-Identifier: Apache-2.0
#pragma once
// Re-codes an image to a recipe of fewer bits without the source it came from.
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

// From raw or exact to any recipe: the same bytes as Encode() of the source, without inputs. From
// kivi:b to fewer bits: likewise, by integer work on the codes. From ott:b to fewer bits too, but
// that raw tiles stay: what the chain before them left is not known. From kivi:b+ to fewer bits and
// a +: codes are narrowed inside the ranges the image has, rows stay; a direct encode might have
// chosen narrower ranges. To the recipe that the image has: a copy. Anything else: kNotDemotable.
//
//   view    parsed and verified
//   target  DemoteBytesMax() suffices (else kTargetTooSmall); may not overlap view. What lies in it
//           behind the new image is in any state
//   bytes   the new image's; set on kOk
// kBadTile besides: a stream that Decode() refuses.
Error Demote(const Backend& backend, const ImageView& view, const Recipe& recipe,
             std::span<std::byte> target, size_t* bytes);

// MaxImageBytes() of the view's spec, and room for a tile to be decoded in where the way to
// `recipe` leads over the source bits.
[[nodiscard]] uint64_t DemoteBytesMax(const ImageView& view, const Recipe& recipe);

// The image at a higher level: the bytes that Encode() of the source gives there, but that raw
// strips and raw tiles stay. MaxImageBytes() suffices for it.
// kNotDemotable: the image is not of cairn, or `level` not above its own, or past kStepLevelMax; or
// a strip would not be smaller than raw, which a profile that says what is not so can bring about.
// kNoProfile, kBadTile, kTargetTooSmall.
Error DemoteSteps(const ImageView& view, const Profile& profile, uint32_t level,
                  std::span<std::byte> target, size_t* bytes);

}  // namespace cairn::codecs
