// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a profile of a space's group is to say, for who mines one: a daemon out of the space's
// blocks, a client out of an engine's cache.
//
// Thread-safety: pure functions.

#include <cstddef>

#include "codecs/mine/profile_miner.h"
#include "codecs/recipe/recipe.h"
#include "proto/block_key.h"

namespace cairn::proto {

// Without query_squares, and not validated: RoPE as the identity has it, from channel 0 on; of a
// latent, K as it comes. Rates are the usual ones, so that the recipe of the space can be changed,
// and that of `recipe`, if it needs a profile.
// REQUIRES: Validate(identity) is OK; group < identity.groups.size().
codecs::MineRequest MineRequestOf(const SpaceIdentity& identity, size_t group,
                                  const codecs::Recipe& recipe);

}  // namespace cairn::proto
