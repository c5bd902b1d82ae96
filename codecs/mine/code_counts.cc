// SPDX-License-Identifier: Apache-2.0
#include "codecs/mine/code_counts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace cairn::codecs {
namespace {

constexpr double kEscapeBits = 16;
constexpr double kSlotBits = 8;      // log2 of the slots of a table
constexpr double kShrinkPrior = 50;  // pseudo-count of codes without a rounding error
constexpr double kOffsetMax = 102;   // 0.4 step

using Masses = double[kCoderSymbols];

// Divides all slots in proportion, with at least one each. The last few go where they save most.
void ShareSlots(const double* masses, uint32_t count, int32_t* shares) {
  const double sum = std::accumulate(masses, masses + count, 0.0);
  int32_t left = kCoderSlots;
  for (uint32_t i = 0; i < count; ++i) {
    shares[i] = std::max(1, static_cast<int32_t>(std::floor(kCoderSlots * masses[i] / sum)));
    left -= shares[i];
  }
  for (; left != 0; left += left < 0 ? 1 : -1) {  // terminates: at most `count` too many or too few
    uint32_t chosen = 0;
    double best = std::numeric_limits<double>::infinity();
    for (uint32_t i = 0; i < count; ++i) {
      const double share = shares[i];
      double cost = -masses[i] * std::log2((share + 1) / share);
      if (left < 0) {
        cost = share > 1 ? masses[i] * std::log2(share / (share - 1))
                         : std::numeric_limits<double>::infinity();
      }
      if (cost < best) {
        best = cost;
        chosen = i;
      }
    }
    shares[chosen] += left < 0 ? -1 : 1;
  }
}

void MakeFrequencies(Masses& counts, uint8_t (&frequencies)[kCoderSymbols]) {
  double sum = std::accumulate(counts, counts + kCoderSymbols, 0.0);
  if (sum == 0) {  // no channel of the sample uses this table; another text may
    for (uint32_t i = 0; i < kCoderSymbols; ++i) counts[i] = std::exp(-std::abs(i - 7.0));
    sum = std::accumulate(counts, counts + kCoderSymbols, 0.0);
  }
  uint32_t order[kEscapeSymbol];
  std::iota(order, order + kEscapeSymbol, 0U);
  std::stable_sort(order, order + kEscapeSymbol,
                   [&](uint32_t a, uint32_t b) { return counts[a] > counts[b]; });
  double least = std::numeric_limits<double>::infinity();
  double kept_sum = 0;
  for (uint32_t kept = 1; kept <= kEscapeSymbol; ++kept) {
    Masses masses;
    int32_t shares[kCoderSymbols];
    for (uint32_t i = 0; i < kept; ++i) masses[i] = counts[order[i]];
    kept_sum += masses[kept - 1];
    masses[kept] = std::max(0.0, sum - kept_sum);
    ShareSlots(masses, kept + 1, shares);
    double cost = kEscapeBits * masses[kept];
    for (uint32_t i = 0; i <= kept; ++i) {
      cost += masses[i] * (kSlotBits - std::log2(static_cast<double>(shares[i])));
    }
    if (cost >= least) continue;
    least = cost;
    std::fill(std::begin(frequencies), std::end(frequencies), uint8_t{0});
    for (uint32_t i = 0; i < kept; ++i) frequencies[order[i]] = static_cast<uint8_t>(shares[i]);
    frequencies[kEscapeSymbol] = static_cast<uint8_t>(shares[kept]);
  }
}

}  // namespace

void MakeTables(const CodeCounts& counts, const ShrinkSums& shrink,
                ProfileTable (&tables)[kProfileTables]) {
  for (uint32_t table = 0; table < kProfileTables; ++table) {
    const auto& symbols = counts.symbols[table];
    Masses masses;
    for (uint32_t i = 0; i < kEscapeSymbol; ++i) {
      masses[i] = static_cast<double>(symbols[i] + symbols[kEscapeSymbol - 1 - i]);
    }
    masses[kEscapeSymbol] = static_cast<double>(symbols[kEscapeSymbol]);
    MakeFrequencies(masses, tables[table].frequencies);
    for (uint32_t i = 0; i < kShrunkCodes; ++i) {
      const double weight = static_cast<double>(shrink.count[table][i]) + kShrinkPrior;
      const double offset = std::nearbyint(shrink.Rest(table, i) / weight * kCoderSlots);
      tables[table].offsets[i] = static_cast<int8_t>(std::clamp(offset, -kOffsetMax, kOffsetMax));
    }
  }
}

double CodedBits(const CodeCounts& counts, const ProfileTable (&tables)[kProfileTables]) {
  auto bits = static_cast<double>(counts.low_bits);
  for (uint32_t table = 0; table < kProfileTables; ++table) {
    const uint8_t(&frequencies)[kCoderSymbols] = tables[table].frequencies;
    const double escape = kSlotBits - std::log2(frequencies[kEscapeSymbol]) + kEscapeBits;
    for (uint32_t i = 0; i < kCoderSymbols; ++i) {
      const bool is_escape = i == kEscapeSymbol || frequencies[i] == 0;
      bits += static_cast<double>(counts.symbols[table][i]) *
              (is_escape ? escape : kSlotBits - std::log2(frequencies[i]));
    }
  }
  return bits;
}

}  // namespace cairn::codecs
