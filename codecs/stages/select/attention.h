// SPDX-License-Identifier: Apache-2.0
#pragma once
// Statistics of a layer and scores of its tokens, both from a window of attention, as in sections
// 3.2 and 3.3 of ARKV (2026). The recipes `arkv` and `arkv:paper` use them. docs/recipes/arkv.md
// lists the choices that the paper leaves open. Nothing here determines bytes of the format: scores
// are stored, or used to make a plan.
//
//   H  query heads, a multiple of the KV heads: query head h reads KV head h / (H / KV heads)
//   W  queries: the last of the chain, in order
//   K  keys: all tokens of the chain
//
// The keys before the last W are called the past. Statistics and scores cover the past; the last W
// keys are always kept. A row of weights that contains a NaN is ignored everywhere.
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

  // Returns true if every field except queries is at least 1, query_heads is a multiple of
  // kv_heads, and no product exceeds 2^31.
  [[nodiscard]] bool IsValid() const;
  // Returns the number of keys before the last `queries`.
  [[nodiscard]] uint32_t past() const { return keys > queries ? keys - queries : 0; }
  [[nodiscard]] uint64_t weight_count() const { return uint64_t{query_heads} * queries * keys; }
};

// Computes softmax(q k scale) of each query over the keys up to the query's own position. Query i
// of W attends to the first K - W + i + 1 keys. If W > K, this number can be 0 or negative; the
// query then attends to no keys, and its weights are 0.
//   queries  [H][W][dim]; keys  [KV heads][K][dim]; both after RoPE
//   weights  [H][W][K]; all are written
// REQUIRES: shape.IsValid(); the spans have these sizes.
void AttentionOf(const AttentionShape& shape, uint32_t dim, float scale,
                 std::span<const float> queries, std::span<const float> keys,
                 std::span<float> weights);

// Statistics of p, the distribution of attention over the past. p_k is the sum of the weights of
// key k over all heads and queries, divided by the sum of these weights over all past keys.
struct LayerStatistics {
  double entropy = 0;   // -sum p log p, in nats
  double variance = 0;  // mean (p - mean)^2; 0 if all p are equal or undefined
  double kurtosis = 0;  // mean (p - mean)^4 / variance^2; 0 if the variance is 0

  // Returns equation 6, entropy^(1/tau1) variance^(1/tau2) kurtosis^(1/tau3), with the tau of the
  // paper. Returns 0 if the variance is 0.
  [[nodiscard]] double Quality() const;
};

//   weights  [H][W][K], after the softmax
// REQUIRES: shape.IsValid(), weights.size() == shape.weight_count().
[[nodiscard]] LayerStatistics StatisticsOf(const AttentionShape& shape,
                                           std::span<const float> weights);

// Computes equation 7, the rho of each layer: its quality divided by the largest quality. If the
// largest quality is 0, every rho is 1.
//   shares  one per layer
void LayerShares(std::span<const LayerStatistics> layers, std::span<double> shares);

// Computes equation 9. For each query head, the raw score of a past token is mean + gamma *
// variance of its weights over the queries (unbiased; 0 for one query). The raw scores are averaged
// over the query heads of each KV head. The score of a token is the mean of the raw scores of five
// tokens, with the token in the middle; at either end there are fewer. If all rows of weights are
// ignored, the score is 0, which means unknown. The last W tokens have the score infinity. The
// paper's gamma is 263.81.
//   scores  [KV heads][K]; all are written
// REQUIRES: those of StatisticsOf().
void ScoreTokens(const AttentionShape& shape, std::span<const float> weights, double gamma,
                 std::span<float> scores);

}  // namespace cairn::codecs
