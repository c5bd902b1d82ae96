// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes a request to mine a profile of a group. The daemon mines from blocks of the space; a client
// mines from an engine's cache.
//
// Thread-safety: pure functions.

#include <cstddef>

#include "codecs/mine/profile_miner.h"
#include "codecs/recipe/recipe.h"
#include "proto/block_key.h"

namespace cairn::proto {

// Returns a request without query_squares, which the caller must validate. Its RoPE is that of the
// identity, from channel 0 on. Latents have no RoPE. The request has the usual rates, so that the
// space's recipe can be changed later. If `recipe` needs a profile, the rate of `recipe` is added.
// REQUIRES: Validate(identity) is OK; group < identity.groups.size().
codecs::MineRequest MineRequestOf(const SpaceIdentity& identity, size_t group,
                                  const codecs::Recipe& recipe);

}  // namespace cairn::proto
