// SPDX-License-Identifier: Apache-2.0
#include "codecs/select/small_norm.h"

#include "codecs/reference/reference.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kSums = 16;
constexpr uint32_t kRowsMax = 2;
constexpr float kSmall = 0.16F;                 // of the middle norm
constexpr uint32_t kInfinityBits = 0x7F800000;  // of a token that cannot be coded

float NormOf(const StripShape& shape, const uint8_t* v, uint32_t token) {
  float sums[kSums] = {};
  bool is_codable = true;
  for (uint32_t channel = 0; channel < shape.dim; ++channel) {
    const float value =
        reference::LoadElement(shape.dtype, v, uint64_t{token} * shape.dim + channel);
    is_codable &= !IsRowValue(value);
    sums[channel % kSums] = Add(sums[channel % kSums], Multiply(value, value));
  }
  for (uint32_t width = kSums / 2; width > 0; width /= 2) {
    for (uint32_t i = 0; i < width; ++i) sums[i] = Add(sums[i], sums[i + width]);
  }
  return is_codable ? sums[0] : BitsFloat(kInfinityBits);
}

}  // namespace

void SelectSmallNorms(const StripShape& shape, const uint8_t* v, StripTokens* rows) {
  float norms[kStripTokens];
  uint8_t token_of_rank[kStripTokens];
  for (uint32_t token = 0; token < shape.tokens; ++token) norms[token] = NormOf(shape, v, token);
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    uint32_t rank = 0;
    for (uint32_t other = 0; other < shape.tokens; ++other) {
      const bool is_before =
          norms[other] < norms[token] || (norms[other] == norms[token] && other < token);
      rank += is_before ? 1 : 0;
    }
    token_of_rank[rank] = static_cast<uint8_t>(token);
  }
  const float limit = Multiply(kSmall, norms[token_of_rank[shape.tokens / 2]]);
  for (uint32_t rank = 0; rank < kRowsMax && rank < shape.tokens; ++rank) {
    if (norms[token_of_rank[rank]] < limit) rows->Add(token_of_rank[rank]);
  }
}

}  // namespace cairn::codecs
