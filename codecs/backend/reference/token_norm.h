// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over the channels of one token, in the order that docs/recipes/cairn.md gives. There are
// sixteen partial sums, each over every sixteenth channel. The partial sums are then added in
// halves: 8 pairs, 4 pairs, and so on. A vector of sixteen lanes adds in the same order.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/pack/elements.h"
#include "codecs/types/dtype.h"

namespace cairn::codecs {

inline constexpr uint32_t kNormSums = 16;

CAIRN_HD float JoinSums(float* sums) {
  for (uint32_t width = kNormSums / 2; width > 0; width /= 2) {
    for (uint32_t i = 0; i < width; ++i) sums[i] = Add(sums[i], sums[i + width]);
  }
  return sums[0];
}

// Returns the sum of term(value) over a token of a [tokens, dim] tile. Returns +infinity if a value
// of the token cannot be coded.
template <typename Term>
CAIRN_HD float TokenNorm(DType dtype, uint32_t dim, const uint8_t* source, uint32_t token,
                         Term term) {
  float sums[kNormSums] = {};
  bool is_codable = true;
  for (uint32_t channel = 0; channel < dim; ++channel) {
    const float value = LoadElement(dtype, source, static_cast<uint64_t>(token) * dim + channel);
    is_codable &= !IsRowValue(value);
    sums[channel % kNormSums] = Add(sums[channel % kNormSums], term(value));
  }
  const float sum = JoinSums(sums);
  return is_codable ? sum : BitsFloat(0x7F800000);
}

}  // namespace cairn::codecs
