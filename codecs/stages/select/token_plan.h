// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans which tokens are kept, each in one of the states of ARKV (2026, section 3.3), under a
// budget of bytes. Writers of `arkv:paper` and readers of `arkv` plan with it.
//
// Tokens rank by score, the largest first. Among equal scores the lower position comes first. Among
// scores of 0 or NaN, which mean unknown, the later position comes first.
//
// Thread-safety: pure functions. They allocate.

#include <cstdint>
#include <span>

namespace cairn::codecs {

// Values are part of the C ABI.
enum class TokenState : uint8_t { kEvicted = 0, kLow = 1, kOriginal = 2 };

// The budget of one head of one layer. The caller decides whether the bytes of K and V are stored
// sizes or the sizes in a reader's memory.
struct TokenBudget {
  uint64_t bytes = 0;
  uint64_t original_bytes = 0;  // size of a token in the state kOriginal, at least 1
  uint64_t low_bytes = 0;       // of a token in the state kLow, at least 1 and at most
                                // original_bytes
  double original_share = 0;    // rho of the layer, 0 to 1: share of the bytes left after protected
                                // tokens
};

// Assigns states in the order of ranks. Tokens of infinite score become original while the budget
// lasts. Then as many tokens become original as original_share of the rest pays for, then tokens
// become low. If that keeps all tokens, the bytes left turn low tokens into original ones. All
// other tokens are evicted. The states take at most budget.bytes. If all tokens fit as originals,
// all are originals.
//   scores  one per token of the head, in the order of positions
//   states  one per token; all are written
void PlanTokens(const TokenBudget& budget, std::span<const float> scores,
                std::span<TokenState> states);

// Makes one plan for all heads of a layer, for readers that keep the same tokens in each. The score
// of a token is the mean of its scores, or infinite if one of them is.
//   scores  [head][token], states likewise; REQUIRES: `tokens` divides their size
void PlanUniform(const TokenBudget& budget, std::span<const float> scores, uint32_t tokens,
                 std::span<TokenState> states);

}  // namespace cairn::codecs
