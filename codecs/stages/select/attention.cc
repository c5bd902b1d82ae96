// SPDX-License-Identifier: Apache-2.0
#include "codecs/stages/select/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace cairn::codecs {
namespace {

constexpr double kTauEntropy = 7.774;
constexpr double kTauVariance = 5.407;
constexpr double kTauKurtosis = 5.528;
constexpr uint32_t kReach = 2;  // tokens to either side that a score is smoothed over
// Weights are fp32: the variance that rounding causes in even weights counts as none.
constexpr double kEvenMax = 1.0e-13;

bool HasNan(std::span<const float> row) {
  return std::ranges::any_of(row, [](float weight) { return std::isnan(weight); });
}

std::span<const float> RowOf(const AttentionShape& shape, std::span<const float> weights,
                             uint32_t head, uint32_t query) {
  return weights.subspan((uint64_t{head} * shape.queries + query) * shape.keys, shape.keys);
}

// Calls visit(row) for each row of the head without a NaN.
template <typename Visit>
void ForEachRow(const AttentionShape& shape, std::span<const float> weights, uint32_t head,
                const Visit& visit) {
  for (uint32_t query = 0; query < shape.queries; ++query) {
    const std::span<const float> row = RowOf(shape, weights, head, query);
    if (!HasNan(row)) visit(row);
  }
}

// Adds mean + gamma * variance of each past token's weights in a head. Returns false if no row is
// left.
bool AddHead(const AttentionShape& shape, std::span<const float> weights, uint32_t head,
             double gamma, std::span<double> sums) {
  std::vector<double> mean(sums.size());
  std::vector<double> square(sums.size());
  double count = 0;
  ForEachRow(shape, weights, head, [&](std::span<const float> row) {
    count += 1;
    for (size_t key = 0; key < sums.size(); ++key) {  // Welford's
      const double rest = row[key] - mean[key];
      mean[key] += rest / count;
      square[key] += rest * (row[key] - mean[key]);
    }
  });
  for (size_t key = 0; key < sums.size(); ++key) {
    sums[key] += mean[key] + (count > 1 ? gamma * square[key] / (count - 1) : 0);
  }
  return count > 0;
}

void SoftmaxRow(std::span<float> row, uint32_t seen) {
  const auto visible = row.first(seen);
  const float largest = visible.empty() ? 0 : *std::ranges::max_element(visible);
  double sum = 0;
  for (float& weight : visible) {
    weight = std::exp(weight - largest);
    sum += weight;
  }
  for (float& weight : visible) weight = static_cast<float>(weight / sum);
  std::ranges::fill(row.subspan(seen), 0.0F);
}

}  // namespace

bool AttentionShape::IsValid() const {
  constexpr uint64_t kMax = uint64_t{1} << 31;
  return query_heads != 0 && kv_heads != 0 && keys != 0 && query_heads % kv_heads == 0 &&
         uint64_t{query_heads} * keys <= kMax && uint64_t{query_heads} * queries <= kMax &&
         uint64_t{query_heads} * queries <= kMax / keys;
}

void AttentionOf(const AttentionShape& shape, uint32_t dim, float scale,
                 std::span<const float> queries, std::span<const float> keys,
                 std::span<float> weights) {
  const uint32_t group = shape.query_heads / shape.kv_heads;
  for (uint32_t head = 0; head < shape.query_heads; ++head) {
    for (uint32_t query = 0; query < shape.queries; ++query) {
      const uint64_t at = uint64_t{head} * shape.queries + query;
      const uint64_t from_end = shape.queries - 1 - query;
      const auto seen = static_cast<uint32_t>(shape.keys > from_end ? shape.keys - from_end : 0);
      const std::span<float> row = weights.subspan(at * shape.keys, shape.keys);
      for (uint32_t key = 0; key < seen; ++key) {
        const float* q = queries.data() + at * dim;
        const float* k = keys.data() + (uint64_t{head / group} * shape.keys + key) * dim;
        double dot = 0;
        for (uint32_t c = 0; c < dim; ++c) dot += double{q[c]} * k[c];
        row[key] = static_cast<float>(dot * scale);
      }
      SoftmaxRow(row, seen);
    }
  }
}

double LayerStatistics::Quality() const {
  if (!(variance > 0) || !(entropy > 0)) return 0;
  return std::pow(entropy, 1 / kTauEntropy) * std::pow(variance, 1 / kTauVariance) *
         std::pow(kurtosis, 1 / kTauKurtosis);
}

LayerStatistics StatisticsOf(const AttentionShape& shape, std::span<const float> weights) {
  std::vector<double> p(shape.past());
  for (uint32_t head = 0; head < shape.query_heads; ++head) {
    ForEachRow(shape, weights, head, [&](std::span<const float> row) {
      for (size_t key = 0; key < p.size(); ++key) p[key] += row[key];
    });
  }
  double total = 0;
  for (const double sum : p) total += sum;
  LayerStatistics statistics;
  if (!(total > 0)) return statistics;
  const double mean = 1 / static_cast<double>(p.size());
  double second = 0;
  double fourth = 0;
  for (double& share : p) {
    share /= total;
    if (share > 0) statistics.entropy -= share * std::log(share);
    const double square = (share - mean) * (share - mean);
    second += square * mean;
    fourth += square * square * mean;
  }
  if (second <= kEvenMax * mean * mean) return statistics;
  statistics.variance = second;
  statistics.kurtosis = fourth / (second * second);
  return statistics;
}

void LayerShares(std::span<const LayerStatistics> layers, std::span<double> shares) {
  double largest = 0;
  for (const LayerStatistics& layer : layers) largest = std::max(largest, layer.Quality());
  for (size_t i = 0; i < layers.size(); ++i) {
    shares[i] = largest > 0 ? layers[i].Quality() / largest : 1;
  }
}

void ScoreTokens(const AttentionShape& shape, std::span<const float> weights, double gamma,
                 std::span<float> scores) {
  const uint32_t past = shape.past();
  const uint32_t group = shape.query_heads / shape.kv_heads;
  for (uint32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    std::vector<double> sums(past);
    uint32_t heads = 0;
    for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      heads += AddHead(shape, weights, head, gamma, sums) ? 1 : 0;
    }
    const std::span<float> target = scores.subspan(uint64_t{kv_head} * shape.keys, shape.keys);
    for (uint32_t token = 0; token < past; ++token) {
      const uint32_t first = token < kReach ? 0 : token - kReach;
      const uint32_t end = std::min(token + kReach + 1, past);
      double sum = 0;
      for (uint32_t i = first; i < end; ++i) sum += sums[i];
      target[token] = heads == 0 ? 0.0F : static_cast<float>(sum / heads / (end - first));
    }
    std::ranges::fill(target.subspan(past), std::numeric_limits<float>::infinity());
  }
}

}  // namespace cairn::codecs
