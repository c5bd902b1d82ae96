// SPDX-License-Identifier: Apache-2.0
// Scores and plans of `arkv`: the paper's statistics on windows made by hand, its degenerate cases,
// three states within a budget, ties, heads that differ and heads that agree.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "codecs/stages/select/attention.h"
#include "codecs/stages/select/token_plan.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

constexpr float kInfinity = INFINITY;
constexpr double kArkvGamma = 263.81;
using States = std::vector<TokenState>;

std::vector<float> RandomAttention(const AttentionShape& shape, std::mt19937_64& random) {
  const uint32_t dim = 8;
  std::normal_distribution<float> bell;
  std::vector<float> q(size_t{shape.query_heads} * shape.queries * dim);
  std::vector<float> k(size_t{shape.kv_heads} * shape.keys * dim);
  for (float& x : q) x = bell(random);
  for (float& x : k) x = bell(random);
  std::vector<float> weights(shape.weight_count());
  AttentionOf(shape, dim, 1.0F, q, k, weights);
  return weights;
}

TEST(AttentionTest, IsCausalAndSumsToOne) {
  std::mt19937_64 random = SeededRandom();
  const AttentionShape shape{4, 2, 5, 20};
  const std::vector<float> weights = RandomAttention(shape, random);
  for (uint32_t row = 0; row < 20; ++row) {
    double sum = 0;
    for (uint32_t key = 0; key < 20; ++key) {
      const float weight = weights[row * 20 + key];
      EXPECT_EQ(weight > 0, key <= 15 + row % 5);
      sum += weight;
    }
    EXPECT_NEAR(sum, 1, 1e-5);
  }
  const AttentionShape longer{1, 1, 3, 2};  // the first query comes before all keys
  EXPECT_EQ(RandomAttention(longer, random)[0], 0);
  EXPECT_EQ(longer.past(), 0U);
  EXPECT_FALSE((AttentionShape{3, 2, 1, 1}.IsValid()));
  EXPECT_FALSE((AttentionShape{1, 1, 70000, 70000}.IsValid()));
}

TEST(StatisticsTest, AreThoseOfThePooledShares) {
  // Two heads, two queries, three past keys: sums 1.0, 0.6, 0.4 of 2.0.
  const AttentionShape shape{2, 1, 2, 5};
  const std::vector<float> weights = {0.5F, 0.1F, 0.1F, 0.3F, 0, 0.3F, 0.1F, 0.1F, 0.4F, 0.1F,
                                      0.1F, 0.2F, 0.1F, 0.6F, 0, 0.1F, 0.2F, 0.1F, 0.5F, 0.1F};
  const LayerStatistics found = StatisticsOf(shape, weights);
  const double p[3] = {0.5, 0.3, 0.2};
  double second = 0;
  double fourth = 0;
  double entropy = 0;
  for (const double share : p) {
    second += std::pow(share - 1.0 / 3, 2) / 3;
    fourth += std::pow(share - 1.0 / 3, 4) / 3;
    entropy -= share * std::log(share);
  }
  EXPECT_NEAR(found.entropy, entropy, 1e-6);
  EXPECT_NEAR(found.variance, second, 1e-7);
  EXPECT_NEAR(found.kurtosis, fourth / (second * second), 1e-5);
  EXPECT_NEAR(found.Quality(),
              std::pow(entropy, 1 / 7.774) * std::pow(second, 1 / 5.407) *
                  std::pow(found.kurtosis, 1 / 5.528),
              1e-6);
}

TEST(StatisticsTest, DegenerateCasesHaveTheirRule) {
  const AttentionShape shape{1, 1, 2, 9};
  const std::vector<float> even(18, 1.0F / 9);
  EXPECT_EQ(StatisticsOf(shape, even).Quality(), 0);  // no variance
  EXPECT_EQ(StatisticsOf(shape, std::vector<float>(18, 0.0F)).Quality(), 0);
  EXPECT_EQ(StatisticsOf(shape, std::vector<float>(18, NAN)).Quality(), 0);
  const AttentionShape all_window{1, 1, 9, 9};  // W >= K
  EXPECT_EQ(StatisticsOf(all_window, std::vector<float>(81, 0.1F)).Quality(), 0);

  std::mt19937_64 random = SeededRandom();
  std::vector<float> weights = RandomAttention(shape, random);
  LayerStatistics layers[3] = {StatisticsOf(shape, weights), {}, StatisticsOf(shape, even)};
  double shares[3];
  LayerShares(layers, shares);
  EXPECT_EQ(shares[0], 1);
  EXPECT_EQ(shares[1], 0);
  EXPECT_EQ(shares[2], 0);
  layers[0] = {};
  LayerShares(layers, shares);
  for (const double share : shares) EXPECT_EQ(share, 1);

  // A row with a NaN is as if it were not there.
  const AttentionShape one{1, 1, 1, 9};
  weights = RandomAttention(one, random);
  std::vector<float> with_nan(weights);
  with_nan.insert(with_nan.begin(), 9, 0.3F);
  with_nan[4] = NAN;
  const AttentionShape both{1, 1, 2, 10};
  std::vector<float> widened(20, 0.0F);
  for (int row = 0; row < 2; ++row) {
    std::copy_n(with_nan.begin() + 9 * row, 9, widened.begin() + 10 * row);
  }
  EXPECT_DOUBLE_EQ(StatisticsOf(one, weights).Quality(), StatisticsOf(both, widened).Quality());
}

// The definition, term by term.
double PlainScore(const AttentionShape& shape, const std::vector<float>& weights, uint32_t head,
                  uint32_t token, double gamma) {
  double mean = 0;
  const uint32_t queries = shape.queries;
  const auto at = [&](uint32_t query) {
    return double{weights[(size_t{head} * queries + query) * shape.keys + token]};
  };
  for (uint32_t query = 0; query < queries; ++query) mean += at(query) / queries;
  double variance = 0;
  for (uint32_t query = 0; query < queries; ++query) {
    variance += (at(query) - mean) * (at(query) - mean) / (queries - 1);
  }
  return mean + gamma * variance;
}

TEST(ScoreTest, IsMeanAndVarianceSmoothedInOrder) {
  std::mt19937_64 random = SeededRandom();
  const AttentionShape shape{6, 2, 7, 30};
  const std::vector<float> weights = RandomAttention(shape, random);
  std::vector<float> scores(60);
  ScoreTokens(shape, weights, kArkvGamma, scores);
  for (uint32_t kv_head = 0; kv_head < 2; ++kv_head) {
    for (uint32_t token = 0; token < 30; ++token) {
      const float found = scores[kv_head * 30 + token];
      if (token >= 23) {
        EXPECT_EQ(found, kInfinity);
        continue;
      }
      double expected = 0;
      uint32_t taps = 0;
      for (int i = static_cast<int>(token) - 2; i <= static_cast<int>(token) + 2; ++i) {
        if (i < 0 || i >= 23) continue;
        ++taps;
        for (uint32_t head = 3 * kv_head; head < 3 * kv_head + 3; ++head) {
          expected += PlainScore(shape, weights, head, static_cast<uint32_t>(i), kArkvGamma) / 3;
        }
      }
      EXPECT_NEAR(found, expected / taps, 1e-5 * expected);
    }
  }
}

TEST(ScoreTest, HeadsWithoutARowLeaveTheMeanToOthers) {
  std::mt19937_64 random = SeededRandom();
  const AttentionShape one{1, 1, 3, 12};
  const std::vector<float> weights = RandomAttention(one, random);
  std::vector<float> doubled(weights);
  doubled.resize(72, NAN);
  std::vector<float> expected(12);
  std::vector<float> found(12);
  ScoreTokens(one, weights, 1, expected);
  ScoreTokens({2, 1, 3, 12}, doubled, 1, found);
  EXPECT_EQ(found, expected);
  ScoreTokens(one, std::vector<float>(36, NAN), 1, found);
  for (uint32_t token = 0; token < 9; ++token) EXPECT_EQ(found[token], 0);
  EXPECT_EQ(found[9], kInfinity);
  ScoreTokens({1, 1, 12, 5}, std::vector<float>(60, 0.2F), 1, std::span(found).first(5));
  for (uint32_t token = 0; token < 5; ++token) EXPECT_EQ(found[token], kInfinity);  // W >= K
}

uint64_t BytesOf(const TokenBudget& budget, const States& states) {
  uint64_t bytes = 0;
  for (const TokenState state : states) {
    if (state == TokenState::kOriginal) bytes += budget.original_bytes;
    if (state == TokenState::kLow) bytes += budget.low_bytes;
  }
  return bytes;
}

TEST(PlanTest, NeverPassesTheBudgetAndKeepsTheBest) {
  std::mt19937_64 random = SeededRandom();
  for (int round = 0; round < 500; ++round) {
    std::vector<float> scores(1 + random() % 200);
    for (float& score : scores) score = static_cast<float>(random() % 50);
    for (uint64_t i = 0; i < scores.size() / 8; ++i) scores[random() % scores.size()] = kInfinity;
    TokenBudget budget;
    budget.original_bytes = 2 + random() % 300;
    budget.low_bytes = 1 + random() % budget.original_bytes;
    budget.bytes = random() % (2 + scores.size() * budget.original_bytes);
    budget.original_share = static_cast<double>(random() % 5) / 4;
    States states(scores.size());
    PlanTokens(budget, scores, states);
    EXPECT_LE(BytesOf(budget, states), budget.bytes);
    // In the order of ranks, states only go down.
    for (size_t a = 0; a < scores.size(); ++a) {
      for (size_t b = a + 1; b < scores.size(); ++b) {
        const bool a_first = scores[a] > scores[b] || (scores[a] == scores[b] && scores[a] > 0);
        const TokenState better = a_first ? states[a] : states[b];
        const TokenState worse = a_first ? states[b] : states[a];
        ASSERT_GE(better, worse) << a << " " << b;
      }
    }
    // No further token would have fit.
    const bool evicts = std::ranges::count(states, TokenState::kEvicted) != 0;
    if (evicts) {
      EXPECT_GT(BytesOf(budget, states) + budget.original_bytes, budget.bytes);
    }
    budget.bytes = scores.size() * budget.original_bytes;  // K <= B
    PlanTokens(budget, scores, states);
    EXPECT_EQ(std::ranges::count(states, TokenState::kOriginal),
              static_cast<int64_t>(scores.size()));
  }
}

TEST(PlanTest, SharesOfTheBudgetAreStates) {
  std::vector<float> scores(100);
  for (size_t i = 0; i < 100; ++i) scores[i] = static_cast<float>(i + 1);
  for (size_t i = 90; i < 100; ++i) scores[i] = kInfinity;
  States states(100);
  // 10 protected tokens of 100 bytes leave 2000: 1200 buy 12 originals, 800 buy 16 low ones.
  const TokenBudget budget{3000, 100, 50, 0.6};
  PlanTokens(budget, scores, states);
  EXPECT_EQ(std::ranges::count(states, TokenState::kOriginal), 22);
  EXPECT_EQ(std::ranges::count(states, TokenState::kLow), 16);
  EXPECT_EQ(states[78], TokenState::kOriginal);
  EXPECT_EQ(states[77], TokenState::kLow);
  EXPECT_EQ(states[61], TokenState::kEvicted);
  PlanTokens({550, 100, 50, 0.6}, scores, states);  // not even the protected
  EXPECT_EQ(BytesOf(budget, states), 500U);
  EXPECT_EQ(states[94], TokenState::kOriginal);
  EXPECT_EQ(states[95], TokenState::kEvicted);
  PlanTokens({0, 100, 50, 1}, scores, states);
  EXPECT_EQ(BytesOf(budget, states), 0U);
}

TEST(PlanTest, TiesGoToTheLowerPositionAndUnknownOnesToTheLater) {
  States states(6);
  PlanTokens({30, 20, 10, 0}, std::vector<float>{1, 2, 1, 1, 2, 1}, states);
  EXPECT_EQ(states, (States{TokenState::kLow, TokenState::kLow, TokenState::kEvicted,
                            TokenState::kEvicted, TokenState::kLow, TokenState::kEvicted}));
  PlanTokens({40, 20, 10, 0}, std::vector<float>{kInfinity, 0, 0, NAN, 0, -1}, states);
  EXPECT_EQ(states, (States{TokenState::kOriginal, TokenState::kEvicted, TokenState::kEvicted,
                            TokenState::kEvicted, TokenState::kLow, TokenState::kLow}));
}

TEST(PlanTest, HeadsDifferOrAgree) {
  const std::vector<float> scores = {9, 1, 4, kInfinity, 1, 8, 5, 2};
  States ragged(8);
  const TokenBudget budget{3, 1, 1, 0};
  PlanTokens(budget, std::span(scores).first(4), std::span(ragged).first(4));
  PlanTokens(budget, std::span(scores).last(4), std::span(ragged).last(4));
  EXPECT_EQ(ragged[1], TokenState::kEvicted);
  EXPECT_EQ(ragged[4], TokenState::kEvicted);
  EXPECT_NE(ragged[5], TokenState::kEvicted);
  States uniform(8);
  PlanUniform({2, 1, 1, 0}, scores, 4, uniform);
  for (size_t token = 0; token < 4; ++token) EXPECT_EQ(uniform[token], uniform[token + 4]);
  EXPECT_NE(uniform[0], TokenState::kEvicted);  // mean 5
  EXPECT_EQ(uniform[1], TokenState::kEvicted);  // 4.5
  EXPECT_EQ(uniform[2], TokenState::kEvicted);  // 4.5
  EXPECT_NE(uniform[3], TokenState::kEvicted);  // infinite
}

}  // namespace
}  // namespace cairn::codecs
