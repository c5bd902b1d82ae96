// SPDX-License-Identifier: Apache-2.0
#pragma once
// The select stage "log rows" of the recipe `logquant`: tokens that are rows while they are young,
// ever fewer of them with age, by their place in the chain alone (LogQuant, algorithm 1, with
// absolute alignment). docs/recipes/logquant.md says the same in words.
//
// Thread-safety: pure functions. Nothing allocates.

#include <array>
#include <cstdint>

#include "codecs/numbers/row_age.h"
#include "codecs/recipe/recipe.h"
#include "codecs/stages/stages.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {

// In a stored position: the row stays, however long the chain. The rest is the token.
inline constexpr uint16_t kRowStays = 0x8000;

// Rows in the order in which they are stored: those that stay, ascending; then the others, the last
// to go first.
struct LogRows {
  std::array<uint16_t, kTokensPerBlockMax> positions;
  uint32_t count = 0;
};

// Rows of a block of `tokens` in a chain of chain_tokens, which is taken to reach the block's end
// at least. The plan's rows stay.
void SelectLogRows(const Recipe& recipe, uint32_t tokens, uint64_t first_position,
                   uint64_t chain_tokens, const TilePlan& plan, LogRows* rows);

// How many of `count` stored positions stay so in a chain of chain_tokens.
//   positions  u16, little-endian, at any alignment
[[nodiscard]] uint32_t CountLogRows(const Recipe& recipe, uint64_t first_position,
                                    uint64_t chain_tokens, const uint8_t* positions,
                                    uint32_t count);

// They are rows of some chain, in their order.
[[nodiscard]] bool AreLogRows(const Recipe& recipe, uint32_t tokens, uint64_t first_position,
                              const uint8_t* positions, uint32_t count);

}  // namespace cairn::codecs
