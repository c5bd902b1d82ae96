// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes the request for mining a profile of a group. The daemon mines the space's blocks; a client
// mines an engine's cache.
//
// Thread-safety: pure functions.

#include <cstddef>

#include "codecs/mine/profile_miner.h"
#include "codecs/recipe/recipe.h"
#include "proto/block_key.h"

namespace cairn::proto {

// Returns a request without query_squares, which is not validated. RoPE is the identity's and
// starts at channel 0; a latent has none. The rates are the usual ones, so that the space's recipe
// can be changed later. The rate of `recipe` is added if that needs a profile.
// REQUIRES: Validate(identity) is OK; group < identity.groups.size().
codecs::MineRequest MineRequestOf(const SpaceIdentity& identity, size_t group,
                                  const codecs::Recipe& recipe);

}  // namespace cairn::proto
