// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state that ott passes from block to block: a pool of the smallest key norms, stored in K
// tiles.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <span>

#include "codecs/image/image.h"
#include "codecs/stages/stages.h"

namespace cairn::codecs {

// Returns the pool that the block before left for this head. It is empty at the start of a chain,
// where no parent has the head or its K tile is raw, for ott/local and for other recipes.
[[nodiscard]] ChainHead ChainBefore(const ImageSpec& spec, ProfileHead at,
                                    std::span<const ImageView> parents);

}  // namespace cairn::codecs
