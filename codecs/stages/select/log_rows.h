// SPDX-License-Identifier: Apache-2.0
#pragma once
// The select stage "log rows" of the recipe `logquant`: recent tokens are rows, and older tokens
// are rows ever more rarely, depending only on their position in the chain (LogQuant, algorithm 1,
// with absolute alignment). docs/recipes/logquant.md describes the same in words.
//
// Thread-safety: pure functions. Nothing allocates.

#include <array>
#include <cstdint>

#include "codecs/numbers/row_age.h"
#include "codecs/recipe/recipe.h"
#include "codecs/stages/stages.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {

// A flag of a stored position: the row stays, however long the chain is. The other bits are the
// token.
inline constexpr uint16_t kRowStays = 0x8000;

// Rows in the order in which they are stored: first the rows that stay, ascending; then the others,
// ordered so that the last one is dropped first.
struct LogRows {
  std::array<uint16_t, kTokensPerBlockMax> positions;
  uint32_t count = 0;
};

// Selects the rows of a block of `tokens` in a chain of chain_tokens; a smaller value counts as the
// block's end. The plan's rows stay.
void SelectLogRows(const Recipe& recipe, uint32_t tokens, uint64_t first_position,
                   uint64_t chain_tokens, const TilePlan& plan, LogRows* rows);

// Returns how many of `count` stored positions are still rows in a chain of chain_tokens.
//   positions  u16, little-endian, at any alignment
[[nodiscard]] uint32_t CountLogRows(const Recipe& recipe, uint64_t first_position,
                                    uint64_t chain_tokens, const uint8_t* positions,
                                    uint32_t count);

// Returns true if the positions are the rows of some chain, in their stored order.
[[nodiscard]] bool AreLogRows(const Recipe& recipe, uint32_t tokens, uint64_t first_position,
                              const uint8_t* positions, uint32_t count);

}  // namespace cairn::codecs
