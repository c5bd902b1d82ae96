// SPDX-License-Identifier: Apache-2.0
#pragma once
// The select stage "min norm", of the recipe ott: the tokens of a head whose keys are smallest, as
// "outlier tokens tracing" finds them (Su et al., ACL 2025, section 3.2): a pool of the N smallest
// keys so far, in each head, that the tokens of a group may enter. docs/recipes/ott.md has the rule
// and where it departs from the paper.
//
// Thread-safety: values and pure functions.

#include <cstdint>

#include "codecs/stages/stages.h"

namespace cairn::codecs {

// As it stands in a K tile: kChainBytes.
void StoreChain(const ChainHead& chain, uint8_t* target);
// False where it is none that an encoder writes; *chain is set on true.
[[nodiscard]] bool LoadChain(const uint8_t* source, ChainHead* chain);

// K and latents: goes on with source.head->chain through the tile's groups, and leaves what it
// chose in source.head->rows. V: takes them from there. REQUIRES: source.head is not null.
void SelectMinNorm(const Backend& backend, const TileSource& source, TilePlan* plan);

}  // namespace cairn::codecs
