// SPDX-License-Identifier: Apache-2.0
#pragma once
// The select stage: which tokens of a tile are rows, kept as their source bits. Choices: none and
// sinks. Tokens that cannot be coded (NaN, infinite, too large) are rows whatever the choice.

#include "codecs/backend/backend.h"
#include "codecs/stages/stages.h"

namespace cairn::codecs {

// Nothing but what cannot be coded.
void SelectNone(const Backend& backend, const TileSource& source, TilePlan* plan);

// Besides, token 0 of a chain, on which attention rests far out of proportion.
void SelectSinks(const Backend& backend, const TileSource& source, TilePlan* plan);

}  // namespace cairn::codecs
