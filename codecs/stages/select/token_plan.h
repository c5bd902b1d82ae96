// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans which tokens are kept, and in which of the states of ARKV (2026, section 3.3), under a
// budget of bytes. Both writers of `arkv:paper` and readers of `arkv` use these plans.
//
// Tokens are ranked by score, the largest first. Among equal scores the lower position comes first.
// Among scores of 0 or NaN, which mean unknown, the later position comes first.
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
  uint64_t low_bytes = 0;       // size of a token in the state kLow, at least 1 and at most
                                // original_bytes
  double original_share = 0;    // rho of the layer, 0 to 1: share of the remaining bytes for
                                // originals, after protected tokens
};

// Assigns states in the order of ranks. First, tokens of infinite score become original while the
// budget lasts. Of the remaining bytes, original_share is spent on more original tokens. The rest
// is spent on low tokens. If all tokens are then kept, the bytes that are left turn low tokens into
// original ones. Otherwise the remaining tokens are evicted. The states take at most budget.bytes.
// If all tokens fit as originals, all are originals.
//   scores  one per token of the head, in the order of positions
//   states  one per token; all are written
void PlanTokens(const TokenBudget& budget, std::span<const float> scores,
                std::span<TokenState> states);

// Makes one plan for all heads of a layer, for readers that keep the same tokens in each head. The
// score of a token is the mean of its scores in all heads. It is infinite if one of these scores is
// infinite.
//   scores  [head][token]; states has the same shape. REQUIRES: `tokens` divides their size
void PlanUniform(const TokenBudget& budget, std::span<const float> scores, uint32_t tokens,
                 std::span<TokenState> states);

}  // namespace cairn::codecs
