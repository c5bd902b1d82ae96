// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inputs and the results of a pass over the sample of a profile, for code that runs the pass
// itself, as a device does, instead of calling ProfileMiner::Add().
//
// Thread-safety: values. They borrow everything.

#include <cstdint>
#include <span>

#include "codecs/side/profile_sums.h"

namespace cairn::codecs {

// Planes are K and V, or the latent alone.
struct ProfilePass {
  std::span<const CodeColumn> columns;        // none: moments are wanted, and no codes
  std::span<const MinedChannel> channels[2];  // of a plane: [layer][head][dim]
};

struct PassSums {
  struct Plane {
    // Of a pass for moments:
    std::span<const ExactMoments> moments;  // [layer][head][dim][kSampleParts]
    std::span<const HeadTokens> tokens;     // [layer][head]
    // Of one for codes:
    std::span<const CodeCounts> codes;  // of each column
    ShrinkSums shrink;
  };
  Plane planes[2];
  // Of a pass for moments: tokens of V past the first of a chain, and those that small norms make
  // rows.
  uint64_t norms = 0, small_norms = 0;
};

}  // namespace cairn::codecs
