// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state that the recipe `ott` passes from block to block: a pool of the smallest key norms. K
// tiles store it.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <cstdint>
#include <optional>
#include <span>

#include "codecs/image/image.h"
#include "codecs/stages/stages.h"

namespace cairn::codecs {

// Returns true if a block of this spec goes on with the pools of the block before: in ott, but not
// ott/local, and not at the start of a chain.
[[nodiscard]] bool FollowsChain(const ImageSpec& spec);
// The same of a block at that position, coded as the recipe says.
[[nodiscard]] bool FollowsChain(const Recipe& recipe, uint64_t first_position);

// Returns true if `parent` is of the block before that of `spec`, in ott, and has this head.
[[nodiscard]] bool IsParentOf(const ImageSpec& parent, const ImageSpec& spec, ProfileHead at);

// Returns where an image of ott has the pool of a head, from the image's first byte: kChainBytes.
// None where the K tile is raw. REQUIRES: the head lies in the image's slice.
[[nodiscard]] std::optional<uint64_t> ChainOffset(const ImagePrefix& image, ProfileHead at);

// Returns the pool that the block before left for this head. It is empty at the start of a chain,
// where no parent has the head or its K tile is raw, for ott/local and for other recipes.
[[nodiscard]] ChainHead ChainBefore(const ImageSpec& spec, ProfileHead at,
                                    std::span<const ImageView> parents);

}  // namespace cairn::codecs
