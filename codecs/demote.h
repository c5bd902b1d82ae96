// SPDX-License-Identifier: Apache-2.0
#pragma once
// Re-codes an image to a recipe of fewer bits without the source it came from.
//
// Thread-safety: Thread-safe. Nothing allocates, keeps a pointer or throws.

#include <cstddef>
#include <span>

#include "codecs/backend.h"
#include "codecs/error.h"
#include "codecs/image.h"
#include "codecs/recipe.h"

namespace cairn::codecs {

// From raw to any recipe: the same bytes as Encode() of the source. From kivi:b to fewer bits:
// likewise, by integer work on the codes. From kivi:b+ to fewer bits and a +: codes are narrowed
// inside the ranges the image has, rows stay; a direct encode might have chosen narrower ranges. To
// the recipe that the image has: a copy. Anything else: kNotDemotable.
//
//   view    parsed and verified
//   target  MaxImageBytes of the new spec suffices (else kTargetTooSmall); may not overlap view
//   bytes   the new image's; set on kOk
Error Demote(const Backend& backend, const ImageView& view, const Recipe& recipe,
             std::span<std::byte> target, size_t* bytes);

}  // namespace cairn::codecs
