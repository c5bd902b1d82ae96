// SPDX-License-Identifier: Apache-2.0
#pragma once
// One tile through the stages of a recipe and into an image. Shared by Encode(), Demote() and the
// coders of single forms.

#include "codecs/backend/backend.h"
#include "codecs/format/image_header.h"
#include "codecs/stages/stages.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Writes the next tile: coded where the recipe makes it smaller than raw, else raw.
// kTargetTooSmall.
Error EncodeTile(const Backend& backend, const Recipe& recipe, const TileSource& source,
                 ImageWriter* writer);

// The pool of ott, row bits and positions of the plan's rows, ascending, and the padding of both
// sections.
//   tile  layout.bytes
void WriteRows(const TileSource& source, const TilePlan& plan, const TileLayout& layout,
               std::byte* tile);

}  // namespace cairn::codecs
