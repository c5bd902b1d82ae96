// SPDX-License-Identifier: Apache-2.0
#pragma once
// Banks of random patterns.

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "codecs/numbers/math.h"
#include "codecs/side/bank.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {

struct BankShape {
  uint32_t layers = 1;
  uint32_t heads = 1;
  uint32_t patterns = 1;
  uint32_t k_dim = 1;
  uint32_t v_dim = 0;  // 0: a latent
};

inline std::vector<std::byte> BankBytes(const BankShape& shape, std::mt19937_64& random) {
  const uint64_t count = uint64_t{shape.layers} * shape.heads * shape.patterns;
  const uint64_t k_bytes = AlignSection(count * shape.k_dim * 2);
  std::vector<std::byte> bytes(kBankHeaderBytes + k_bytes + AlignSection(count * shape.v_dim * 2));
  Store(bytes.data(), kBankMagic);
  Store(bytes.data() + 4, kBankVersion);
  Store(bytes.data() + 6, static_cast<uint16_t>(kBankHeaderBytes));
  Store(bytes.data() + 8, uint64_t{bytes.size()});
  Store(bytes.data() + 16, static_cast<uint8_t>(shape.v_dim == 0 ? 1 : 2));
  Store(bytes.data() + 18, static_cast<uint16_t>(shape.patterns));
  Store(bytes.data() + 20, static_cast<uint16_t>(shape.layers));
  Store(bytes.data() + 22, static_cast<uint16_t>(shape.heads));
  Store(bytes.data() + 24, shape.k_dim);
  Store(bytes.data() + 28, shape.v_dim);
  std::normal_distribution<float> bell(0.0F, 8.0F);
  const auto fill = [&](uint64_t at, uint64_t values) {
    for (uint64_t i = 0; i < values; ++i) {
      Store(bytes.data() + at + 2 * i, FloatToFp16(bell(random), Fp16Rounding::kNearestEven));
    }
  };
  fill(kBankHeaderBytes, count * shape.k_dim);
  fill(kBankHeaderBytes + k_bytes, count * shape.v_dim);
  return bytes;
}

}  // namespace cairn::codecs
