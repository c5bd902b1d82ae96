// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a reader wants of one group of a block, and in which blocks of a prefix it needs it.

#include <cstdint>

#include "codecs/types/shape.h"

namespace cairn {

struct WantedGroup {
  // Which blocks of a prefix of n blocks the group needs.
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
