// SPDX-License-Identifier: Apache-2.0
#pragma once
// The allocate stage "salience": gives each channel of K a class, from the magnitude of queries in
// the channel and the range of its values.
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

// Ignores tokens in the plan's rows. Query magnitudes come from the writer
// (source.query_magnitudes), else from the steps of the profile (source.profile, for a plane
// without a basis); else they are 1.
void AllocateBySalience(const Recipe& recipe, const TileSource& source, const TilePlan& plan,
                        ChannelClasses* classes);

}  // namespace cairn::codecs
