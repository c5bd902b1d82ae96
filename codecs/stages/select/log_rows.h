// SPDX-License-Identifier: Apache-2.0
#pragma once
// The select stage "log rows" of the recipe `logquant`. All recent tokens are rows, that is, stored
// at full precision. The older tokens are, the fewer of them are rows. The choice depends only on a
// token's position in the chain (LogQuant, algorithm 1, with absolute alignment).
// docs/recipes/logquant.md describes the same in words.
//
// Thread-safety: pure functions. They do not allocate.

#include <array>
#include <cstdint>

#include "codecs/numbers/row_age.h"
#include "codecs/recipe/recipe.h"
#include "codecs/stages/stages.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {

// A flag in a stored position: the row stays a row, however long the chain becomes. The other bits
// are the position of the token.
inline constexpr uint16_t kRowStays = 0x8000;

// Rows in the order in which they are stored. First come the rows that stay, ascending. The others
// follow in the reverse of the order in which they are dropped as the chain grows.
struct LogRows {
  std::array<uint16_t, kTokensPerBlockMax> positions;
  uint32_t count = 0;
};

// Selects the rows of a block of `tokens` tokens in a chain of chain_tokens. A chain_tokens below
// the end of the block counts as that end. Rows that the plan already has stay.
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
