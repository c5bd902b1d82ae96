// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks that this daemon offers to other members when it drains.

#include <cstddef>
#include <cstdint>

#include "service/index/block_index.h"
#include "service/peer/offer_plan.h"
#include "service/spaces.h"

namespace cairn {

// Returns the stored blocks that were used since that time, and after they were stored. If there
// are more than `count_max`, returns those that were used last.
OfferableBlocks CollectUsed(const BlockIndex& index, Spaces& spaces, uint32_t since_unix_s,
                            size_t count_max);

}  // namespace cairn
