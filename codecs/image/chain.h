// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state that the recipe `ott` passes from each block of a chain to the next: for each head, a
// pool of the smallest key norms so far. K tiles store the pool.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <cstdint>
#include <optional>
#include <span>

#include "codecs/image/image.h"
#include "codecs/stages/stages.h"

namespace cairn::codecs {

// Returns true if a block of this spec continues from the pools of the previous block. This is so
// for ott, except at the start of a chain; it is not so for ott/local.
[[nodiscard]] bool FollowsChain(const ImageSpec& spec);
// FollowsChain() for a block at that position with that recipe.
[[nodiscard]] bool FollowsChain(const Recipe& recipe, uint64_t first_position);

// Returns true if `parent` is an image of ott, belongs to the block before the block of `spec`, and
// has this head.
[[nodiscard]] bool IsParentOf(const ImageSpec& parent, const ImageSpec& spec, ProfileHead at);

// Returns the offset of a head's pool in an image of ott. The pool has kChainBytes. Returns nullopt
// if the K tile is raw. REQUIRES: the head lies in the image's slice.
[[nodiscard]] std::optional<uint64_t> ChainOffset(const ImagePrefix& image, ProfileHead at);

// Returns the pool that the previous block left for this head. The pool is empty at the start of a
// chain, for ott/local and other recipes, and if no parent has a coded K tile of the head.
[[nodiscard]] ChainHead ChainBefore(const ImageSpec& spec, ProfileHead at,
                                    std::span<const ImageView> parents);

}  // namespace cairn::codecs
