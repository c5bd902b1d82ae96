// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much the index holds.

#include <cstdint>

namespace cairn {

struct IndexFigures {
  uint64_t block_count = 0;
  uint64_t image_count = 0;
  uint64_t image_bytes = 0;   // published
  uint64_t source_bytes = 0;  // what they decode to
};

}  // namespace cairn
