// SPDX-License-Identifier: Apache-2.0
#pragma once
// Banks of random patterns.

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "codecs/numbers/math.h"
#include "codecs/side/bank.h"
#include "codecs/side/bank_shape.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {

inline std::vector<std::byte> BankBytes(const BankShape& shape, std::mt19937_64& random) {
  const uint64_t count = uint64_t{shape.layers} * shape.heads * shape.patterns;
  std::vector<std::byte> bytes(BankBytes(shape));
  WriteBankFrame(shape, bytes);
  std::normal_distribution<float> bell(0.0F, 8.0F);
  for (uint32_t plane = 0; plane < BankPlanes(shape); ++plane) {
    std::byte* values = bytes.data() + PatternsAt(shape, plane, 0);
    for (uint64_t i = 0; i < count * BankDim(shape, plane); ++i) {
      Store(values + 2 * i, FloatToFp16(bell(random), Fp16Rounding::kNearestEven));
    }
  }
  return bytes;
}

}  // namespace cairn::codecs
