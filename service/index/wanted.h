// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of one group that a reader wants, and in which blocks of a prefix.

#include <cstdint>

#include "codecs/types/shape.h"

namespace cairn {

struct WantedGroup {
  // The blocks of a prefix of n blocks that the group needs.
  enum class Rule : uint8_t {
    kEvery,   // full attention: all n
    kWindow,  // the last min(n, window_blocks)
    kLast,    // a state: the last one
  };
  uint16_t group = 0;
  codecs::Slice slice;
  Rule rule = Rule::kEvery;
  uint32_t window_blocks = 0;  // kWindow: ceil(window / tokens per block) + 1
};

}  // namespace cairn
