// SPDX-License-Identifier: Apache-2.0
#pragma once
// The predict stage of the recipe patternkv. Each token takes the pattern of its head that leaves
// the smallest remainder (PatternKV, arXiv 2510.05176, equation 6). A token of V takes the pattern
// only if the gate of numbers/gate.h accepts it. docs/recipes/patternkv.md has the rule and its
// differences from the paper.
//
// Thread-safety: pure functions.

#include "codecs/stages/stages.h"

namespace cairn::codecs {

// Chooses the pattern by the range of the remainder, as the paper does, and its code in the decode
// phase. REQUIRES for both functions: source.bank has the head.
void PredictMinMax(const Backend& backend, const TileSource& source, TilePlan* plan);
// Chooses the pattern by the squared length of the remainder, as the public code does in prefill.
void PredictNearest(const Backend& backend, const TileSource& source, TilePlan* plan);

}  // namespace cairn::codecs
