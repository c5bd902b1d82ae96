// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much the index holds.

#include <array>
#include <cstdint>

#include "service/tier/image_facts.h"

namespace cairn {

// Of a space, or of all.
struct IndexFigures {
  uint64_t block_count = 0;
  uint64_t image_count = 0;
  uint64_t source_bytes = 0;                      // what they decode to, each image once
  uint64_t image_bytes = 0;                       // of their copies in all tiers
  uint64_t copies_source_bytes = 0;               // what those decode to
  std::array<uint64_t, kTierCount> tier_bytes{};  // image_bytes by IndexOf(tier)
};

// Of the copies in one tier.
struct CopyFigures {
  uint64_t block_count = 0;  // that have copies there
  uint64_t copy_count = 0;
  uint64_t image_bytes = 0;
  uint64_t source_bytes = 0;  // what they decode to
  uint64_t pinned_bytes = 0;  // as allocated, of copies that may not go, those unlinked included
  uint64_t leased_bytes = 0;  // as allocated, of images that are leased
  // Blocks that went because the index was full, since the start, whatever room the tier had.
  uint64_t evicted_for_index = 0;
};

}  // namespace cairn
