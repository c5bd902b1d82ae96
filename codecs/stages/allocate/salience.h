// SPDX-License-Identifier: Apache-2.0
#pragma once
// The allocate stage "salience": a class for each channel of K, by how large queries are there and
// how wide its values lie.
//
// Thread-safety: pure functions. Nothing allocates.

#include "codecs/numbers/mixed.h"
#include "codecs/stages/stages.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {

struct ChannelClasses {
  ChannelClass of[kDimMax];
  uint32_t counts[kChannelClasses];
};

// rows: tokens that are left out. Magnitudes are the writer's (source.query_magnitudes), else what
// the steps of the profile say (source.profile, of a plane without a basis), else 1.
void AllocateBySalience(const Recipe& recipe, const TileSource& source, const TilePlan& plan,
                        ChannelClasses* classes);

}  // namespace cairn::codecs
