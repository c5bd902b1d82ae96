// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes norms of tokens, with additions in the order of codecs/backend/reference/token_norm.h.
// The norm is infinite if a value of the token cannot be coded.

#include <cstdint>

#include "codecs/backend/reference/small_norm.h"
#include "codecs/backend/reference/token_norm.h"
#include "codecs/numbers/math.h"
#include "kernels/body/encode_tasks.h"

namespace cairn::kernels {

// Computes norms of tokens with one warp. Half a warp sums a token, with one partial sum per lane.
//   term(value)  returns what an element adds to the sum
//   norms        one per token, in shared memory
template <typename Term>
CAIRN_DEVICE void FindNorms(const PlaneRecord& plane, uint8_t* source, uint32_t token_first,
                            uint32_t tokens, Term term, float* norms, Fault* fault) {
  constexpr uint32_t kSums = codecs::kNormSums;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  for (uint32_t first = 0; first < tokens; first += kWarpLanes / kSums) {
    const uint32_t at = first + lane / kSums;
    const uint8_t* row =
        at < tokens ? SourcePlace(plane, source, token_first + at, fault) : nullptr;
    float sum = 0.0F;
    bool is_codable = true;
    for (uint32_t c = lane % kSums; row != nullptr && c < plane.dim; c += kSums) {
      const float value = LoadValue(plane.dtype, row, c);
      is_codable &= !codecs::IsRowValue(value);
      sum = codecs::Add(sum, term(value));
    }
    for (uint32_t lanes = kSums / 2; lanes > 0; lanes /= 2) {
      sum = codecs::Add(sum, codecs::BitsFloat(ShuffleXor(codecs::FloatBits(sum), lanes)));
    }
    const uint32_t uncodable = Ballot(!is_codable) >> (lane / kSums * kSums);
    if (lane % kSums != 0 || at >= tokens) continue;
    norms[at] = codecs::BitsFloat((uncodable & ((1U << kSums) - 1)) != 0 ? codecs::kInfinityBits
                                                                         : codecs::FloatBits(sum));
  }
}

}  // namespace cairn::kernels
