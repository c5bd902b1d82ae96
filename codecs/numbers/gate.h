// SPDX-License-Identifier: Apache-2.0
#pragma once
// The gate of PatternKV (arXiv 2510.05176, the accept/reject rule). For a token of V, it decides
// whether the token's pattern is subtracted. Unlike in the paper, a token can have several groups
// here.
//
// An error that is uniform over a step of R / L has the variance (R / L)^2 / 12; its square has the
// variance (R / L)^4 / 180. The pattern is subtracted if the sum of the squared errors shrinks by
// at least z standard deviations of the difference, where z belongs to the one-sided level alpha:
//
//   sum g (R_raw^2 - R_flat^2) / 12  >=  z sqrt(sum g (R_raw^4 + R_flat^4) / 180)
//
// The sums run over the token's groups of g channels; the levels L cancel. The code compares
// squares, so it needs no root. For one group of d channels the rule is R_flat <= rho* R_raw with
// the paper's
//
//   rho*^2 = (1 - sqrt(1 - a^2)) / a,   a = 1 - 4 z^2 / (5 d)
//
// Computed in fp32, with a rounding after each operation. Compiles for devices.

#include <cstdint>

#include "codecs/numbers/math.h"

namespace cairn::codecs {

// 4 z^2 / 5 for alpha = 0.05, z = 1.6448536.
inline constexpr float kGateLevel = 2.1644348F;

struct GateSums {
  float gain = 0.0F;    // sum g (R_raw^2 - R_flat^2)
  float spread = 0.0F;  // sum g (R_raw^4 + R_flat^4)
};

// Adds one group of `channels` channels. `raw` is the range of its values, and `flat` is the range
// after the pattern is subtracted.
CAIRN_HD GateSums AddGroup(GateSums sums, uint32_t channels, float raw, float flat) {
  const float g = static_cast<float>(channels);
  const float raw2 = Multiply(raw, raw);
  const float flat2 = Multiply(flat, flat);
  const float fourth = Add(Multiply(raw2, raw2), Multiply(flat2, flat2));
  sums.gain = Add(sums.gain, Multiply(g, Add(raw2, -flat2)));
  sums.spread = Add(sums.spread, Multiply(g, fourth));
  return sums;
}

// Returns true if subtracting the pattern gains enough. Returns false if all ranges are 0. It has
// no branch, since the outcome is unpredictable.
CAIRN_HD bool PassesGate(GateSums sums, float level) {
  const bool is_gain = sums.gain > 0.0F;
  const bool is_clear = Multiply(sums.gain, sums.gain) >= Multiply(level, sums.spread);
  return is_gain & is_clear;
}

}  // namespace cairn::codecs
