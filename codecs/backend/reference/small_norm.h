// SPDX-License-Identifier: Apache-2.0
#pragma once
// The select stage "small norm": tokens of a strip of V whose norm is far below the others'. What
// has a small V is what attention rests on when it has nothing to say.
//
// Thread-safety: a pure function.

#include <cstdint>

#include "codecs/pack/strip.h"

namespace cairn::codecs {

inline constexpr uint32_t kSmallNormsMax = 2;
inline constexpr float kSmallNorm = 0.16F;             // of the middle norm
inline constexpr uint32_t kInfinityBits = 0x7F800000;  // the norm of a token that cannot be coded

// Tokens of a strip: bit t mod 64 of word t / 64.
struct StripTokens {
  uint64_t words[2] = {0, 0};

  void Add(uint32_t token) { words[token / 64] |= uint64_t{1} << (token % 64); }
  [[nodiscard]] bool Has(uint32_t token) const {
    return ((words[token / 64] >> (token % 64)) & 1) != 0;
  }
  [[nodiscard]] uint32_t Count() const {
    return static_cast<uint32_t>(__builtin_popcountll(words[0]) + __builtin_popcountll(words[1]));
  }
};

// Adds the two of smallest norm at most, as docs/recipes/cairn.md says.
//   v  ElementCount(shape) elements
void SelectSmallNorms(const StripShape& shape, const uint8_t* v, StripTokens* rows);

}  // namespace cairn::codecs
