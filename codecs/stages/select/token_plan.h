// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which tokens are kept, and in which of the states of ARKV (2026, section 3.3), under a budget of
// bytes. Writers of `arkv:paper` and readers of `arkv` plan with it.
//
// Tokens rank by score, the largest first; of equal scores the lower position comes first, but of
// those that are 0 or NaN, of which nothing is known, the later one.
//
// Thread-safety: pure functions, which allocate.

#include <cstdint>
#include <span>

namespace cairn::codecs {

// Values are part of the C ABI.
enum class TokenState : uint8_t { kEvicted = 0, kLow = 1, kOriginal = 2 };

// Of one head of one layer. What it says of K's and V's bytes is the caller's: what is stored, or
// what a reader holds.
struct TokenBudget {
  uint64_t bytes = 0;
  uint64_t original_bytes = 0;  // of a token in that state, at least 1
  uint64_t low_bytes = 0;       // likewise, and at most original_bytes
  double original_share = 0;  // rho of the layer: of the bytes that protected tokens leave; 0 to 1
};

// In the order of ranks: tokens of infinite score become original while the budget lasts; then as
// many original as original_share of the rest pays for, then low ones. Where all tokens are kept,
// what is left makes low ones original. The others are evicted. The states take at most
// budget.bytes, and where all tokens fit as originals, all are.
//   scores  of the head's tokens, in the order of positions
//   states  as many, written whole
void PlanTokens(const TokenBudget& budget, std::span<const float> scores,
                std::span<TokenState> states);

// One plan for all heads of a layer, for readers that keep the same tokens in each: a token has the
// mean of its scores, infinite if one is.
//   scores  [head][token], states likewise; `tokens` divides their size
void PlanUniform(const TokenBudget& budget, std::span<const float> scores, uint32_t tokens,
                 std::span<TokenState> states);

}  // namespace cairn::codecs
