// SPDX-License-Identifier: Apache-2.0
#pragma once
// The select stage "small norm". It finds the tokens of a strip of V whose norm is far below that
// of the others. Attention uses such a token as a sink when no other token matters.
//
// Thread-safety: a pure function.

#include <cstdint>

#include "codecs/pack/strip.h"

namespace cairn::codecs {

inline constexpr uint32_t kSmallNormsMax = 2;
inline constexpr float kSmallNorm = 0.16F;             // relative to the median norm
inline constexpr uint32_t kInfinityBits = 0x7F800000;  // the norm of a token that cannot be coded

CAIRN_HD uint32_t Ones(uint64_t word) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__popcll(word));
#else
  return static_cast<uint32_t>(__builtin_popcountll(word));
#endif
}

// A set of tokens of a strip: token t is bit t mod 64 of word t / 64. `= {}` is the empty set.
struct StripTokens {
  uint64_t words[2];

  CAIRN_HD_MEMBER void Add(uint32_t token) {
    words[token / 64] |= static_cast<uint64_t>(1) << (token % 64);
  }
  [[nodiscard]] CAIRN_HD_MEMBER bool Has(uint32_t token) const {
    return ((words[token / 64] >> (token % 64)) & 1) != 0;
  }
  [[nodiscard]] CAIRN_HD_MEMBER uint32_t Count() const { return Ones(words[0]) + Ones(words[1]); }
};

// Adds at most two tokens with the smallest norms, by the rule in docs/recipes/cairn.md.
//   v  ElementCount(shape) elements
void SelectSmallNorms(const StripShape& shape, const uint8_t* v, StripTokens* rows);

}  // namespace cairn::codecs
