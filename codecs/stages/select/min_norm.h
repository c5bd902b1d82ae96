// SPDX-License-Identifier: Apache-2.0
#pragma once
// The select stage "min norm" of the recipe ott: selects the tokens of a head with the smallest
// keys, as "outlier tokens tracing" does (Su et al., ACL 2025, section 3.2). Each head has a pool
// of the N smallest keys so far, which tokens of a group may enter. docs/recipes/ott.md has the
// rule and its differences from the paper.
//
// Thread-safety: values and pure functions.

#include <cstdint>

#include "codecs/stages/stages.h"

namespace cairn::codecs {

// Stores the pool in the format of a K tile. The target has kChainBytes.
void StoreChain(const ChainHead& chain, uint8_t* target);
// Returns false if no encoder writes such a pool. Sets *chain if it returns true.
[[nodiscard]] bool LoadChain(const uint8_t* source, ChainHead* chain);

// For K and latents: updates source.head->chain with the tile's groups, one after another, and
// stores the selected rows in source.head->rows. For V: uses these rows. REQUIRES: source.head is
// not null.
void SelectMinNorm(const Backend& backend, const TileSource& source, TilePlan* plan);

}  // namespace cairn::codecs
