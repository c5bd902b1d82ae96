// SPDX-License-Identifier: Apache-2.0
#pragma once
// The allocate stage "uniform": every channel gets the recipe's bits.

#include "codecs/stages.h"

namespace cairn::codecs {

void AllocateUniform(const Recipe& recipe, const TileSource& source, TilePlan* plan);

}  // namespace cairn::codecs
