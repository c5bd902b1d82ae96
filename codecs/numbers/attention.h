// SPDX-License-Identifier: Apache-2.0
#pragma once
// The scalar arithmetic of attention: exp and log in fp32, and the order of its sums. Every fp32
// operation is rounded, so hosts and devices that use it agree bit for bit.
//
// Thread-safety: pure functions. Free of the standard library, for hosts and devices.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

// The number of partial sums in a sum over tokens or channels. Term i is added to sum i mod 16, in
// order. The partial sums are then added in halves: 8 pairs, 4 pairs, and so on. A vector of
// sixteen lanes adds in the same order.
inline constexpr uint32_t kAttentionSums = 16;

// Adds up kAttentionSums partial sums. Overwrites them.
CAIRN_HD float JoinAttentionSums(float* sums) {
  for (uint32_t width = kAttentionSums / 2; width > 0; width /= 2) {
    for (uint32_t i = 0; i < width; ++i) sums[i] = Add(sums[i], sums[i + width]);
  }
  return sums[0];
}

// Returns e^x for x <= 0, within 2 units in the last place. Returns 0 below -87, where the result
// would be a denormal.
CAIRN_HD float AttentionExp(float x) {
  if (!(x >= -87.0F)) return 0.0F;
  const int32_t octaves = RoundToInt(Multiply(x, 1.44269504F));
  const float n = static_cast<float>(octaves);
  // ln 2 is subtracted in two parts. n times the first part is exact.
  const float r = Add(Add(x, -Multiply(n, 0.693359375F)), Multiply(n, 2.12194440e-4F));
  float p = Add(Multiply(1.9875691500e-4F, r), 1.3981999507e-3F);
  p = Add(Multiply(p, r), 8.3334519073e-3F);
  p = Add(Multiply(p, r), 4.1665795894e-2F);
  p = Add(Multiply(p, r), 1.6666665459e-1F);
  p = Add(Multiply(p, r), 5.0000001201e-1F);
  const float power = Add(Add(Multiply(Multiply(r, r), p), r), 1.0F);
  return Multiply(power, BitsFloat(static_cast<uint32_t>(octaves + 127) << 23));
}

// Returns the natural logarithm of a normal x > 0, within 2 units in the last place of max(result,
// 1).
CAIRN_HD float AttentionLog(float x) {
  const uint32_t bits = FloatBits(x);
  // x = m * 2^octaves, m in [sqrt(1/2), sqrt(2)).
  const uint32_t shifted = bits + (0x3F800000U - 0x3F3504F3U);
  const int32_t octaves = static_cast<int32_t>(shifted >> 23) - 127;
  const float m = BitsFloat((shifted & 0x7FFFFF) + 0x3F3504F3U);
  const float s = Divide(Add(m, -1.0F), Add(m, 1.0F));
  const float z = Multiply(s, s);
  float p = Add(Multiply(z, 0.22222222F), 0.28571429F);
  p = Add(Multiply(p, z), 0.4F);
  p = Add(Multiply(p, z), 0.66666667F);
  const float of_m = Add(Multiply(Multiply(p, z), s), Multiply(2.0F, s));
  return Add(Multiply(static_cast<float>(octaves), 0.69314718F), of_m);
}

}  // namespace cairn::codecs
