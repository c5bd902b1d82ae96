// SPDX-License-Identifier: Apache-2.0
#pragma once
// The predict stage of the recipe patternkv: each token takes the pattern of its head that leaves
// the smallest rest (PatternKV, arXiv 2510.05176, equation 6). A token of V takes it only if the
// gate of numbers/gate.h accepts it. docs/recipes/patternkv.md has the rule and its differences
// from the paper.
//
// Thread-safety: pure functions.

#include "codecs/stages/stages.h"

namespace cairn::codecs {

// Chooses by the range of the rest, as the paper does, also in its decode phase.
// REQUIRES for both: source.bank has the head.
void PredictMinMax(const Backend& backend, const TileSource& source, TilePlan* plan);
// Chooses by the squared length of the rest, as the public code does in prefill.
void PredictNearest(const Backend& backend, const TileSource& source, TilePlan* plan);

}  // namespace cairn::codecs
