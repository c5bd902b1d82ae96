// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cache for codecs/backend/cpu/step*.inl, which the strips of one image share. It has the
// rotations of K at a position, and the tokens with small norms. Size: 64 KiB. The caller that
// codes an image may provide one. Only the operations in those files read and write it.
//
// Thread-safety: owned by one caller.

#include <cstdint>

#include "codecs/backend/reference/small_norm.h"
#include "codecs/pack/strip.h"

namespace cairn::codecs {

struct StepScratch {
  static constexpr uint32_t kPairsMax = 64;  // pairs beyond these are not cached
  static constexpr uint32_t kLanes = 16;     // tokens of a block

  // The inputs of the cached rotations: the address of the pairs' turns, the first position, and
  // the number of blocks from there.
  const uint8_t* turns = nullptr;
  uint64_t position = 0;
  uint32_t blocks = 0;
  alignas(64) float cosine[kStripTokens / kLanes][kPairsMax][kLanes];
  alignas(64) float sine[kStripTokens / kLanes][kPairsMax][kLanes];

  // The strip of V for which the tokens with small norms are cached.
  const uint8_t* v = nullptr;
  StripTokens small_norms = {};
};

}  // namespace cairn::codecs
