// SPDX-License-Identifier: Apache-2.0
#include "codecs/stages/select/token_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace cairn::codecs {
namespace {

std::vector<uint32_t> Ranked(std::span<const float> scores) {
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto known = [&](uint32_t token) { return scores[token] > 0 ? scores[token] : 0.0F; };
  std::ranges::sort(order, [&](uint32_t a, uint32_t b) {
    if (known(a) != known(b)) return known(a) > known(b);
    return known(a) > 0 ? a < b : a > b;
  });
  return order;
}

uint64_t Affordable(uint64_t bytes, uint64_t each, uint64_t tokens) {
  return std::min(bytes / each, tokens);
}

}  // namespace

void PlanTokens(const TokenBudget& budget, std::span<const float> scores,
                std::span<TokenState> states) {
  const std::vector<uint32_t> order = Ranked(scores);
  const uint64_t original = std::max<uint64_t>(budget.original_bytes, 1);
  const uint64_t low = std::clamp<uint64_t>(budget.low_bytes, 1, original);
  std::ranges::fill(states, TokenState::kEvicted);

  const auto infinite = static_cast<uint64_t>(
      std::ranges::count_if(scores, [](float score) { return std::isinf(score) && score > 0; }));
  uint64_t left = budget.bytes;
  const uint64_t fitting = Affordable(left, original, infinite);
  left -= fitting * original;
  // If the budget does not suffice for them, they are evicted like other tokens. The budget left is
  // too small for one of them.
  uint64_t originals = fitting;
  uint64_t lows = 0;
  if (fitting == infinite) {
    const uint64_t others = scores.size() - infinite;
    const double share = std::clamp(budget.original_share, 0.0, 1.0) * static_cast<double>(left);
    const uint64_t best =
        std::min(Affordable(left, original, others), static_cast<uint64_t>(share) / original);
    left -= best * original;
    originals += best;
    lows = Affordable(left, low, others - best);
    left -= lows * low;
    if (lows == others - best) {
      const uint64_t raised = low == original ? lows : Affordable(left, original - low, lows);
      originals += raised;
      lows -= raised;
    }
  }
  for (uint64_t i = 0; i < originals + lows; ++i) {
    states[order[i]] = i < originals ? TokenState::kOriginal : TokenState::kLow;
  }
}

void PlanUniform(const TokenBudget& budget, std::span<const float> scores, uint32_t tokens,
                 std::span<TokenState> states) {
  const size_t heads = tokens == 0 ? 0 : scores.size() / tokens;
  if (heads == 0) return;
  std::vector<float> mean(tokens);
  for (uint32_t token = 0; token < tokens; ++token) {
    double sum = 0;
    for (size_t head = 0; head < heads; ++head) {
      const float score = scores[head * tokens + token];
      sum += score > 0 ? score : 0;
    }
    mean[token] = static_cast<float>(sum / static_cast<double>(heads));
  }
  PlanTokens(budget, mean, states.first(tokens));
  for (size_t head = 1; head < heads; ++head) {
    std::ranges::copy(states.first(tokens), states.subspan(head * tokens).begin());
  }
}

}  // namespace cairn::codecs
