// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cache that the strips of one image share when codecs/backend/cpu/step*.inl codes them: the
// rotations of K at a position, and the tokens with small norms. Large: 64 KiB. The caller that
// codes an image may provide one. Only those operations read and write it.
//
// Thread-safety: belongs to one caller.

#include <cstdint>

#include "codecs/backend/reference/small_norm.h"
#include "codecs/pack/strip.h"

namespace cairn::codecs {

struct StepScratch {
  static constexpr uint32_t kPairsMax = 64;  // more are not kept
  static constexpr uint32_t kLanes = 16;     // tokens of a block

  // Of the pairs of a profile, by where their turns are, so many blocks from a position on.
  const uint8_t* turns = nullptr;
  uint64_t position = 0;
  uint32_t blocks = 0;
  alignas(64) float cosine[kStripTokens / kLanes][kPairsMax][kLanes];
  alignas(64) float sine[kStripTokens / kLanes][kPairsMax][kLanes];

  // Of the strip of V that lies at `v`.
  const uint8_t* v = nullptr;
  StripTokens small_norms = {};
};

}  // namespace cairn::codecs
