// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inputs and the results of one pass over the sample of a profile. Code that runs the pass
// itself, for example on a device, uses them instead of ProfileMiner::Add().
//
// Thread-safety: values. They borrow all that they refer to.

#include <cstdint>
#include <span>

#include "codecs/side/profile_sums.h"

namespace cairn::codecs {

// Its planes are either K and V, or the latent alone.
struct ProfilePass {
  std::span<const CodeColumn> columns;        // empty: the pass computes moments
  std::span<const MinedChannel> channels[2];  // for each plane: [layer][head][dim]
};

struct PassSums {
  struct Plane {
    // The results of a pass that computes moments:
    std::span<const ExactMoments> moments;  // [layer][head][dim][kSampleParts]
    std::span<const HeadTokens> tokens;     // [layer][head]
    // The results of a pass that counts codes:
    std::span<const CodeCounts> codes;  // one per column
    ShrinkSums shrink;
  };
  Plane planes[2];
  // More results of a pass that computes moments. `norms` counts the tokens of V other than the
  // first token of a chain. `small_norms` counts those of them that would be stored uncoded,
  // because their norm is small.
  uint64_t norms = 0, small_norms = 0;
};

}  // namespace cairn::codecs
