// SPDX-License-Identifier: Apache-2.0
#pragma once
// A profile of the recipe `cairn` for elements that are normal, with the spreads that the codec
// benchmark gives its channels: steps that differ as a measured profile's do, and tables of bells.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "codecs/image/image.h"
#include "codecs/types/bytes.h"
#include "tests/support/profile_bytes.h"

namespace cairn::bench {

// Of a channel of 2 * half; both members of a pair have the same.
inline float BellSpread(uint32_t channel, uint32_t half) {
  return std::exp2(static_cast<float>(channel % half % 7) - 3.0F);
}

class BellProfile {
 public:
  // has_basis: K is coded in a basis, that of channels of one spread mixed among themselves, so
  // that components spread as channels do.
  BellProfile(uint16_t layers, uint16_t heads, uint32_t dim, bool has_basis = false)
      : bytes_(codecs::ProfileBytes({.layers = layers,
                                     .heads = heads,
                                     .k_dim = dim,
                                     .v_dim = dim,
                                     .rope = codecs::RopeKind::kHalf,
                                     .rotary_dims = static_cast<uint16_t>(dim),
                                     .has_basis = has_basis},
                                    std::mt19937_64(1))
                   .bytes()) {
    using codecs::AlignSection;
    constexpr uint64_t kRates = 2;
    constexpr uint64_t kTableBytes = codecs::kCoderSymbols * codecs::kProfileTables;
    uint64_t at =
        codecs::kProfileHeaderBytes + AlignSection(uint64_t{4} * dim) + AlignSection(4 * kRates);
    for (uint32_t plane = 0; plane < 2; ++plane) {
      for (uint32_t table = 0; table < codecs::kProfileTables; ++table) {
        StoreBell(table, at + table * codecs::kCoderSymbols);
      }
      at += AlignSection(kTableBytes) + AlignSection(2 * codecs::kProfileTables);
    }
    for (uint64_t i = 0; i < uint64_t{2} * layers * heads * dim; ++i, at += 8) {
      StoreChannel(static_cast<uint32_t>(i % dim), dim / 2, at);
    }
    if (has_basis) StoreBasis(uint32_t{layers} * heads, dim, AlignSection(at));
  }

  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  // Table t is of channels whose spread is 2^((t - 16) / 4) steps.
  void StoreBell(uint32_t table, uint64_t at) {
    const double spread = std::exp2((static_cast<double>(table) - 16) / 4);
    const auto below = [&](double x) { return std::erf(x / spread / std::sqrt(2.0)) / 2; };
    int32_t left = 255;  // and one for the escape
    for (int32_t code = 7; code > 0; --code) {
      const double share = below(code + 0.5) - below(code - 0.5);
      const auto frequency = static_cast<uint8_t>(std::lround(255 * share));
      bytes_[at + 7 - code] = bytes_[at + 7 + code] = std::byte{frequency};
      left -= 2 * frequency;
    }
    bytes_[at + 7] = static_cast<std::byte>(left);
    bytes_[at + codecs::kEscapeSymbol] = std::byte{1};
  }

  void StoreChannel(uint32_t channel, uint32_t half, uint64_t at) {
    // 256 log2 of spreads over steps, about 0.06 in the mean.
    constexpr int32_t kRatios[8] = {-300, -200, -100, 0, 50, 150, 250, 350};
    const auto spread =
        static_cast<int16_t>(std::lround(256 * std::log2(1.08F * BellSpread(channel, half))));
    codecs::Store(bytes_.data() + at, 0.0F);
    codecs::Store(bytes_.data() + at + 4,
                  static_cast<int16_t>(spread - kRatios[channel % half * 5 % 8]));
    codecs::Store(bytes_.data() + at + 6, spread);
  }

  // Of each head: scales and their inverses, 1; and a reflection, which is its own inverse.
  void StoreBasis(uint32_t heads, uint32_t dim, uint64_t at) {
    for (uint64_t i = 0; i < uint64_t{2} * heads * dim; ++i, at += 4) {
      codecs::Store(bytes_.data() + at, 1.0F);
    }
    std::vector<float> normal(dim);
    float square = 0;
    for (uint32_t c = 0; c < dim; ++c) {
      normal[c] = c % (dim / 2) % 7 == 0 ? 1.0F + static_cast<float>(c % 5) : 0.0F;
      square += normal[c] * normal[c];
    }
    for (uint64_t i = 0; i < uint64_t{heads} * dim * dim; ++i, at += 2) {
      const uint64_t row = i / dim % dim;
      const uint64_t column = i % dim;
      const float value = (row == column ? 1.0F : 0.0F) - 2 * normal[row] * normal[column] / square;
      codecs::Store(bytes_.data() + at,
                    codecs::FloatToFp16(value, codecs::Fp16Rounding::kNearestEven));
    }
  }

  std::vector<std::byte> bytes_;
};

}  // namespace cairn::bench
