// SPDX-License-Identifier: Apache-2.0
#pragma once
// The select stage. It chooses which tokens of a tile are rows, that is, stored as their source
// elements. The two choices here are none and sinks. Tokens that cannot be coded (NaN, infinite,
// too large) are always rows.

#include "codecs/backend/backend.h"
#include "codecs/stages/stages.h"

namespace cairn::codecs {

// Selects only the tokens that cannot be coded.
void SelectNone(const Backend& backend, const TileSource& source, TilePlan* plan);

// Selects the same tokens, and token 0 of a chain, which gets a disproportionate share of attention
// (an attention sink).
void SelectSinks(const Backend& backend, const TileSource& source, TilePlan* plan);

}  // namespace cairn::codecs
