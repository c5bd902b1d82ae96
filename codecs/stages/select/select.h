// SPDX-License-Identifier: Apache-2.0
#pragma once
// The select stage: chooses the tokens of a tile that are rows, kept as their source bits. The
// choices are none and sinks. Tokens that cannot be coded (NaN, infinite, too large) are always
// rows.

#include "codecs/backend/backend.h"
#include "codecs/stages/stages.h"

namespace cairn::codecs {

// Selects only the tokens that cannot be coded.
void SelectNone(const Backend& backend, const TileSource& source, TilePlan* plan);

// Also selects token 0 of a chain, to which attention gives a disproportionate weight.
void SelectSinks(const Backend& backend, const TileSource& source, TilePlan* plan);

}  // namespace cairn::codecs
