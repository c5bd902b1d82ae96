// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measures the error of decoded values.

#include <cmath>
#include <cstddef>
#include <span>

#include "codecs/numbers/math.h"
#include "codecs/types/bytes.h"

namespace cairn {

// Returns the root mean square of the differences of bf16 values. REQUIRES: equal sizes.
inline double Bf16Error(std::span<const std::byte> a, std::span<const std::byte> b) {
  const auto value = [](std::span<const std::byte> bytes, size_t at) {
    return codecs::Bf16ToFloat(codecs::Load<uint16_t>(bytes.data() + at));
  };
  double squares = 0;
  for (size_t at = 0; at < a.size(); at += 2) squares += std::pow(value(a, at) - value(b, at), 2);
  return std::sqrt(squares / (static_cast<double>(a.size()) / 2));
}

}  // namespace cairn
