// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state that the recipe `ott` passes from block to block: for each head, a pool of the smallest
// key norms. K tiles store it.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <cstdint>
#include <optional>
#include <span>

#include "codecs/image/image.h"
#include "codecs/stages/stages.h"

namespace cairn::codecs {

// Returns true if a block of this spec continues from the pools of the previous block. This is the
// case for ott, but not for ott/local, and not at the start of a chain.
[[nodiscard]] bool FollowsChain(const ImageSpec& spec);
// The same, for a block at that position with that recipe.
[[nodiscard]] bool FollowsChain(const Recipe& recipe, uint64_t first_position);

// Returns true if `parent` is of ott, is the block before that of `spec`, and has this head.
[[nodiscard]] bool IsParentOf(const ImageSpec& parent, const ImageSpec& spec, ProfileHead at);

// Returns the offset in an image of ott of a head's pool, which has kChainBytes. Returns nullopt if
// the K tile is raw. REQUIRES: the head lies in the image's slice.
[[nodiscard]] std::optional<uint64_t> ChainOffset(const ImagePrefix& image, ProfileHead at);

// Returns the pool that the previous block left for this head. The pool is empty at the start of a
// chain, for ott/local and other recipes, and if no parent has the head or its K tile is raw.
[[nodiscard]] ChainHead ChainBefore(const ImageSpec& spec, ProfileHead at,
                                    std::span<const ImageView> parents);

}  // namespace cairn::codecs
