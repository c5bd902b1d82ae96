// SPDX-License-Identifier: Apache-2.0
#pragma once
// Payloads of bf16 that look like KV, and banks of their patterns.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "codecs/numbers/math.h"
#include "codecs/types/bytes.h"
#include "tests/bench/bell_profile.h"
#include "tests/support/bank_bytes.h"

namespace cairn::bench {

// Normal values whose spread differs from channel to channel, as K's does.
inline void FillBells(uint32_t tokens, uint32_t dim, std::span<std::byte> target) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> some(size_t{tokens} * dim * 8);
  for (size_t i = 0; i < some.size(); ++i) {
    const float spread = BellSpread(static_cast<uint32_t>(i % dim), dim / 2);
    some[i] = codecs::FloatToBf16(normal(random) * spread + (i % 5 == 0 ? spread : 0.0F));
  }
  const size_t bytes = some.size() * 2;
  for (size_t at = 0; at < target.size(); at += bytes) {
    std::memcpy(target.data() + at, some.data(), std::min(bytes, target.size() - at));
  }
}

// A bank of tokens as the source has them: 32 patterns a head.
inline std::vector<std::byte> BankOf(std::span<const std::byte> source, uint32_t layers,
                                     uint32_t heads, uint32_t dim) {
  constexpr uint32_t kPatterns = 32;
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes = codecs::BankBytes({layers, heads, kPatterns, dim, dim}, random);
  const size_t values = std::min((bytes.size() - codecs::kBankHeaderBytes) / 2, source.size() / 2);
  for (size_t i = 0; i < values; ++i) {
    const float value = codecs::Bf16ToFloat(codecs::Load<uint16_t>(source.data() + 2 * i));
    codecs::Store(bytes.data() + codecs::kBankHeaderBytes + 2 * i,
                  codecs::FloatToFp16(value, codecs::Fp16Rounding::kNearestEven));
  }
  return bytes;
}

}  // namespace cairn::bench
