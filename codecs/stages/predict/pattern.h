// SPDX-License-Identifier: Apache-2.0
#pragma once
// The predict stage of the recipe patternkv: each token takes the pattern of its head that leaves
// the least (PatternKV, arXiv 2510.05176, equation 6), V only where the gate of predict/gate.h says
// that it pays. docs/recipes/patternkv.md has the rule and where it departs from the paper.
//
// Thread-safety: pure functions.

#include "codecs/stages/stages.h"

namespace cairn::codecs {

// By the range of what is left: the paper's, and that of its decode phase.
// REQUIRES of both: source.bank has the head.
void PredictMinMax(const Backend& backend, const TileSource& source, TilePlan* plan);
// By its squared length: what public code does in prefill.
void PredictNearest(const Backend& backend, const TileSource& source, TilePlan* plan);

}  // namespace cairn::codecs
