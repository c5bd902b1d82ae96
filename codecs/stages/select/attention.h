// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a window of attention says of a layer and of its tokens: ARKV (2026), sections 3.2 and 3.3,
// for the recipes `arkv` and `arkv:paper`. docs/recipes/arkv.md says where the paper leaves a
// choice. Nothing here decides bytes: it gives scores and shares, which are stored or planned with.
//
//   H  query heads, a multiple of the KV heads: query head h reads KV head h / (H / KV heads)
//   W  queries: the last of the chain, in order
//   K  keys: all tokens of the chain
//
// Keys before the last W are the past, which statistics and scores are of; the last W are always
// kept. Rows of weights with a NaN are left out everywhere.
//
// Thread-safety: pure functions. Only StatisticsOf() and ScoreTokens() allocate.

#include <cstdint>
#include <span>

namespace cairn::codecs {

struct AttentionShape {
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t queries = 0;
  uint32_t keys = 0;

  // All but queries at least 1, query_heads a multiple of kv_heads, and no product past 2^31.
  [[nodiscard]] bool IsValid() const;
  // Keys before the last `queries`.
  [[nodiscard]] uint32_t past() const { return keys > queries ? keys - queries : 0; }
  [[nodiscard]] uint64_t weight_count() const { return uint64_t{query_heads} * queries * keys; }
};

// softmax(q k scale) of each query, which sees the keys up to its own: query i of W sees the first
// K - W + i + 1 of them, and all of a negative count, none, when W > K: its weights are then 0.
//   queries  [H][W][dim], keys  [KV heads][K][dim]: as they meet, after RoPE
//   weights  [H][W][K], written whole
// REQUIRES: shape.IsValid(), spans as said.
void AttentionOf(const AttentionShape& shape, uint32_t dim, float scale,
                 std::span<const float> queries, std::span<const float> keys,
                 std::span<float> weights);

// Of p, what each past key gets of the attention that the past gets: p_k = sum over heads and
// queries of its weights / that sum over the past.
struct LayerStatistics {
  double entropy = 0;  // -sum p log p, in nats
  double variance =
      0;  // mean (p - mean)^2; 0: p is even, or there is no past or no attention to it
  double kurtosis = 0;  // mean (p - mean)^4 / variance^2; 0 where the variance is

  // Equation 6: entropy^(1/tau1) variance^(1/tau2) kurtosis^(1/tau3), with the paper's tau; 0 where
  // the variance is 0.
  [[nodiscard]] double Quality() const;
};

//   weights  [H][W][K], after the softmax
// REQUIRES: shape.IsValid(), weights.size() == shape.weight_count().
[[nodiscard]] LayerStatistics StatisticsOf(const AttentionShape& shape,
                                           std::span<const float> weights);

// Equation 7: rho of each layer, its quality over the largest; 1 for all where that is 0.
//   shares  as many as layers
void LayerShares(std::span<const LayerStatistics> layers, std::span<double> shares);

// Equation 9: of a past token, mean + gamma * variance of its weights over the queries (unbiased; 0
// of one query), the mean of that over the query heads of its KV head, and of that the mean of five
// tokens in the order of positions, itself in the middle; of fewer at either end. 0, nothing known,
// where no row is left. The last W tokens: infinite. The paper's gamma is 263.81.
//   scores  [KV heads][K], written whole
// REQUIRES: as StatisticsOf().
void ScoreTokens(const AttentionShape& shape, std::span<const float> weights, double gamma,
                 std::span<float> scores);

}  // namespace cairn::codecs
