// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an image takes over from the block before it: the pools of ott, which stand in its K tiles.
//
// Thread-safety: Thread-safe. Nothing allocates.

#include <span>

#include "codecs/image/image.h"
#include "codecs/stages/stages.h"

namespace cairn::codecs {

// The pool that the head of the block before left: empty at the start of a chain, where `parents`
// do not have the head, where its tile there is raw, for ott/local and for other recipes.
[[nodiscard]] ChainHead ChainBefore(const ImageSpec& spec, ProfileHead at,
                                    std::span<const ImageView> parents);

}  // namespace cairn::codecs
