// SPDX-License-Identifier: Apache-2.0
#pragma once
// The allocate stage "salience". It gives each channel of K a class. The class depends on the
// magnitude of the queries in the channel and on the range of the channel's values.
//
// Thread-safety: pure functions. They do not allocate.

#include "codecs/numbers/mixed.h"
#include "codecs/stages/stages.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {

struct ChannelClasses {
  ChannelClass of[kDimMax];
  uint32_t counts[kChannelClasses];
};

// Ignores tokens that are rows in the plan. If source.query_magnitudes is not null, it has the
// magnitudes of the queries. Otherwise they are computed from the steps of source.profile, if that
// profile has no basis for the plane. Otherwise all are 1.
void AllocateBySalience(const Recipe& recipe, const TileSource& source, const TilePlan& plan,
                        ChannelClasses* classes);

}  // namespace cairn::codecs
