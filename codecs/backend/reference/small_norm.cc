// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/reference/small_norm.h"

#include "codecs/backend/reference/token_norm.h"

namespace cairn::codecs {
void SelectSmallNorms(const StripShape& shape, const uint8_t* v, StripTokens* rows) {
  float norms[kStripTokens];
  uint8_t token_of_rank[kStripTokens];
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    norms[token] = TokenNorm(shape.dtype, shape.dim, v, token,
                             [](float value) { return Multiply(value, value); });
  }
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    uint32_t rank = 0;
    for (uint32_t other = 0; other < shape.tokens; ++other) {
      const bool is_before =
          norms[other] < norms[token] || (norms[other] == norms[token] && other < token);
      rank += is_before ? 1 : 0;
    }
    token_of_rank[rank] = static_cast<uint8_t>(token);
  }
  const float limit = Multiply(kSmallNorm, norms[token_of_rank[shape.tokens / 2]]);
  for (uint32_t rank = 0; rank < kSmallNormsMax && rank < shape.tokens; ++rank) {
    if (norms[token_of_rank[rank]] < limit) rows->Add(token_of_rank[rank]);
  }
}

}  // namespace cairn::codecs
