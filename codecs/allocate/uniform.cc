// SPDX-License-Identifier: Apache-2.0
#include "codecs/allocate/uniform.h"

namespace cairn::codecs {

void AllocateUniform(const Recipe& recipe, const TileSource& source, TilePlan* plan) {
  plan->affine = AffineOf(source.geometry, recipe);
}

}  // namespace cairn::codecs
