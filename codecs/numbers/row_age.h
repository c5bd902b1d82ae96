// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells how long a chain may become before a token of the recipe `logquant` is no longer stored at
// full precision (as a row). This depends only on the token's position in the chain and on
// the recipe's variant. docs/recipes/logquant.md describes the same in words.
//
// Thread-safety: pure functions. Free of the standard library, so that hosts and devices can use
// them.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

// Recipe::variant of logquant.
enum class LogVariant : uint8_t { kHalving = 0, kOctaves = 1 };
inline constexpr uint32_t kLogWindow = 42;

inline constexpr uint64_t kRowForever = ~static_cast<uint64_t>(0);
inline constexpr uint32_t kLogHalvingsMax = 5;  // 2^5 is the last power of 2 not above the window
inline constexpr uint32_t kLogOctavesMax = 48;  // older than any chain

// REQUIRES: value is not 0.
CAIRN_HD uint32_t TrailingZeros(uint64_t value) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__ffsll(static_cast<long long>(value))) - 1;
#else
  return static_cast<uint32_t>(__builtin_ctzll(value));
#endif
}

// Returns the length of the longest chain in which the token at `position` is a row. Returns
// kRowForever for the first token.
CAIRN_HD uint64_t RowUntil(uint64_t position, LogVariant variant) {
  if (position == 0) return kRowForever;
  const uint32_t zeros = TrailingZeros(position);
  uint64_t age = 0;
  if (variant == LogVariant::kHalving) {
    age = static_cast<uint64_t>(kLogWindow) *
          ((zeros < kLogHalvingsMax ? zeros : kLogHalvingsMax) + 2);
  } else {
    if (zeros >= kLogOctavesMax) return kRowForever;
    age = static_cast<uint64_t>(kLogWindow) << (zeros + 1);
  }
  return position > kRowForever - age ? kRowForever : position + age;
}

}  // namespace cairn::codecs
