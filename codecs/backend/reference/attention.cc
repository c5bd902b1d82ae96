// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/reference/attention.h"

#include "codecs/numbers/attention.h"
#include "codecs/pack/elements.h"

namespace cairn::codecs::reference {
namespace {

constexpr uint32_t kTokensMax = 1024;
constexpr uint32_t kMinusInfinityBits = 0xFF800000;

// Returns the sum of term(i) over i < count with is_in(i).
template <typename IsIn, typename Term>
float SumOf(uint32_t count, IsIn is_in, Term term) {
  float sums[kAttentionSums] = {};
  for (uint32_t i = 0; i < count; ++i) {
    if (is_in(i)) sums[i % kAttentionSums] = Add(sums[i % kAttentionSums], term(i));
  }
  return JoinAttentionSums(sums);
}

}  // namespace

void Attend(const AttendedTiles& tiles, const float* query, float scale, float* output,
            float* log_sum) {
  const auto is_kept = [&](uint32_t token) {
    return tiles.is_kept == nullptr || tiles.is_kept[token] != 0;
  };
  float weights[kTokensMax];
  float largest = BitsFloat(kMinusInfinityBits);
  for (uint32_t token = 0; token < tiles.tokens; ++token) {
    if (!is_kept(token)) continue;
    const float product = SumOf(
        tiles.k_dim, [](uint32_t) { return true; },
        [&](uint32_t c) {
          const uint64_t element = uint64_t{token} * tiles.k_dim + c;
          return Multiply(query[c], LoadElement(tiles.dtype, tiles.k, element));
        });
    weights[token] = Multiply(scale, product);
    if (weights[token] > largest) largest = weights[token];
  }
  *log_sum = largest;
  if (FloatBits(largest) == kMinusInfinityBits) {
    for (uint32_t c = 0; c < tiles.v_dim; ++c) output[c] = 0.0F;
    return;
  }
  for (uint32_t token = 0; token < tiles.tokens; ++token) {
    if (is_kept(token)) weights[token] = AttentionExp(Add(weights[token], -largest));
  }
  const float sum = SumOf(tiles.tokens, is_kept, [&](uint32_t token) { return weights[token]; });
  *log_sum = Add(largest, AttentionLog(sum));
  for (uint32_t c = 0; c < tiles.v_dim; ++c) {
    const float weighted = SumOf(tiles.tokens, is_kept, [&](uint32_t token) {
      const uint64_t element = uint64_t{token} * tiles.v_row + c;
      return Multiply(weights[token], LoadElement(tiles.dtype, tiles.v, element));
    });
    output[c] = Divide(weighted, sum);
  }
}

void MergeAttention(uint32_t count, uint32_t v_dim, const float* outputs, const float* log_sums,
                    float* output, float* log_sum) {
  float largest = BitsFloat(kMinusInfinityBits);
  for (uint32_t i = 0; i < count; ++i) largest = log_sums[i] > largest ? log_sums[i] : largest;
  for (uint32_t c = 0; c < v_dim; ++c) output[c] = 0.0F;
  *log_sum = largest;
  if (FloatBits(largest) == kMinusInfinityBits) return;
  float sum = 0.0F;
  for (uint32_t i = 0; i < count; ++i) {
    const float weight = AttentionExp(Add(log_sums[i], -largest));
    sum = Add(sum, weight);
    for (uint32_t c = 0; c < v_dim; ++c) {
      output[c] = Add(output[c], Multiply(weight, outputs[uint64_t{i} * v_dim + c]));
    }
  }
  for (uint32_t c = 0; c < v_dim; ++c) output[c] = Divide(output[c], sum);
  *log_sum = Add(largest, AttentionLog(sum));
}

}  // namespace cairn::codecs::reference
