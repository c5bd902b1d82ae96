// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inputs and the results of a pass over the sample of a profile. They are for code that runs
// the pass itself, for example on a device, instead of calling ProfileMiner::Add().
//
// Thread-safety: values. They borrow everything.

#include <cstdint>
#include <span>

#include "codecs/side/profile_sums.h"

namespace cairn::codecs {

// Planes are K and V, or the latent alone.
struct ProfilePass {
  std::span<const CodeColumn> columns;        // empty: the pass computes moments, not codes
  std::span<const MinedChannel> channels[2];  // for each plane: [layer][head][dim]
};

struct PassSums {
  struct Plane {
    // Results of a pass for moments:
    std::span<const ExactMoments> moments;  // [layer][head][dim][kSampleParts]
    std::span<const HeadTokens> tokens;     // [layer][head]
    // Results of a pass for codes:
    std::span<const CodeCounts> codes;  // one per column
    ShrinkSums shrink;
  };
  Plane planes[2];
  // Results of a pass for moments: the number of tokens of V after the first of a chain, and the
  // number of them that are rows because of a small norm.
  uint64_t norms = 0, small_norms = 0;
};

}  // namespace cairn::codecs
