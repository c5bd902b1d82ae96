// SPDX-License-Identifier: Apache-2.0
#pragma once
// Statistics of the index.

#include <array>
#include <cstdint>

#include "service/tier/image_facts.h"

namespace cairn {

// Of a space, or of all spaces.
struct IndexFigures {
  uint64_t block_count = 0;
  uint64_t image_count = 0;
  uint64_t source_bytes = 0;                      // decoded size, each image once
  uint64_t image_bytes = 0;                       // of their copies in all tiers
  uint64_t copies_source_bytes = 0;               // decoded size of those copies
  std::array<uint64_t, kTierCount> tier_bytes{};  // image_bytes by IndexOf(tier)
};

// Of the copies in one tier.
struct CopyFigures {
  uint64_t block_count = 0;  // with copies there
  uint64_t copy_count = 0;
  uint64_t image_bytes = 0;
  uint64_t source_bytes = 0;  // decoded size
  // As allocated, of copies that must not be evicted, including unlinked ones.
  uint64_t pinned_bytes = 0;
  uint64_t leased_bytes = 0;  // as allocated, of leased images
  // Blocks evicted because the index was full, not the tier, since the start.
  uint64_t evicted_for_index = 0;
};

}  // namespace cairn
