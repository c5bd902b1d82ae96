// SPDX-License-Identifier: Apache-2.0
// Chooses tables and maximum exponents for an encoder of strips, as codecs/pack/strip_choice.h
// defines, for 32 channels at a time with the primitives of struct Strips.

#include "codecs/pack/strip_choice.h"

namespace cairn::codecs {
namespace {

// Any number of elements, read 32 at a time and padded with zeros.
template <typename Type>
struct StripSource {
  const StripShape& shape;
  const uint8_t* bytes;

  // Returns an address where 32 elements from `index` on can be read, of which `count` are used.
  [[nodiscard]] const uint8_t* At(uint64_t index, uint32_t count, uint8_t* buffer) const {
    const uint8_t* at = bytes + index * Type::kBytes;
    if (count >= kChunk) return at;
    for (uint32_t i = 0; i < kChunk * Type::kBytes; ++i) buffer[i] = 0;
    __builtin_memcpy(buffer, at, uint64_t{count} * Type::kBytes);
    return buffer;
  }
  [[nodiscard]] Bytes32 Exponents(uint64_t index, uint32_t count) const {
    uint8_t buffer[kChunk * Type::kBytes];
    return Type::Exponents(At(index, count, buffer));
  }
};

// ChannelSample of 32 channels.
struct PanelSample {
  alignas(32) uint8_t means[kPanelWide];
  alignas(32) uint8_t counts[kWindow][kPanelWide];

  [[nodiscard]] ChannelSample Of(uint32_t channel) const {
    ChannelSample sample{means[channel], {}};
    for (uint32_t i = 0; i < kWindow; ++i) sample.counts[i] = counts[i][channel];
    return sample;
  }
};

// The sampled exponents of 32 channels, one row per token.
struct SampledRows {
  Bytes32 of[64];
  uint32_t count = 0;

  template <typename Type>
  SampledRows(const StripSource<Type>& source, uint32_t channel_first) {
    const StripShape& shape = source.shape;
    for (uint32_t token = 0; token < shape.tokens; token += SampleStride(shape.tokens)) {
      const uint64_t index = uint64_t{token} * shape.dim + channel_first;
      of[count++] = source.Exponents(index, shape.dim - channel_first);
    }
  }
};

void FindMeans(const SampledRows& rows, uint8_t* means) {
  Halves32 sum = Strips::SetHalves(0);
  Bytes32 zeros = Strips::Set(0);  // 0 is counted
  for (uint32_t i = 0; i < rows.count; ++i) {
    sum = Strips::Add(sum, Strips::Widen(rows.of[i]));
    zeros = Strips::Sub(zeros, Strips::Equal(rows.of[i], Strips::Set(0)));
  }
  alignas(32) uint16_t sums[kPanelWide];
  alignas(32) uint8_t nones[kPanelWide];
  Strips::PutHalves<false>(reinterpret_cast<uint8_t*>(sums), sum);
  Strips::Store(nones, zeros);
  for (uint32_t c = 0; c < kPanelWide; ++c) {
    // Quotients are at least 1/128 below the next integer, so fp32 does not round them up to it.
    const auto there = static_cast<int32_t>(rows.count - nones[c]);
    const auto dividend = static_cast<float>(2 * static_cast<int32_t>(sums[c]) + there);
    const auto divisor = static_cast<float>(there == 0 ? 1 : 2 * there);
    const auto mean = static_cast<int32_t>(dividend / divisor);
    means[c] = static_cast<uint8_t>(2 * there < static_cast<int32_t>(rows.count) ? 0 : mean);
  }
}

template <typename Type>
void TakeSample(const StripSource<Type>& source, uint32_t channel_first, PanelSample* sample) {
  const SampledRows rows(source, channel_first);
  FindMeans(rows, sample->means);
  const Bytes32 highest = Strips::Add(Strips::Load(sample->means), Strips::Set(kWindowAbove));
  Bytes32 counts[kWindow];
  for (Bytes32& count : counts) count = Strips::Set(0);
  for (uint32_t row = 0; row < rows.count; ++row) {
    const Bytes32 at = Strips::Sub(highest, rows.of[row]);
    for (uint32_t i = 0; i < kWindow; ++i) {
      counts[i] = Strips::Sub(counts[i], Strips::Equal(at, Strips::Set(i)));
    }
  }
  for (uint32_t i = 0; i < kWindow; ++i) Strips::Store(sample->counts[i], counts[i]);
}

// Costs of two adjacent exponents of the window, the first in the low byte, for each table and
// maximum.
constexpr uint32_t kTops = kAboveMax - kAboveMin + 1;
struct PricePairs {
  uint16_t of[kExponentTables][kTops][kWindow / 2];
};
constexpr PricePairs kPricePairs = [] {
  PricePairs pairs{};
  for (uint32_t table = 0; table < kExponentTables; ++table) {
    for (uint32_t top = 0; top < kTops; ++top) {
      uint32_t prices[kWindow] = {};
      for (uint32_t i = 0; i < kWindow; ++i) {
        const int32_t symbol =
            static_cast<int32_t>(i + top + kAboveMin) - static_cast<int32_t>(kWindowAbove);
        prices[i] = kExponentCosts[table][symbol < 0 ? kEscapeSymbol : symbol];
      }
      for (uint32_t i = 0; i < kWindow; i += 2) {
        pairs.of[table][top][i / 2] = static_cast<uint16_t>(prices[i] | prices[i + 1] << 8);
      }
    }
  }
  return pairs;
}();
static_assert(kWindow + kTops - 1 <= kEscapeSymbol, "no index is past the symbols");

struct PanelChoice {
  alignas(32) uint8_t tables[kPanelWide];
  alignas(32) uint8_t above[kPanelWide];
};

void ChooseTables(const PanelSample& sample, PanelChoice* choice) {
  Halves32 pairs[kWindow / 2];
  for (uint32_t i = 0; i < kWindow; i += 2) {
    pairs[i / 2] = Strips::Pair(Strips::Load(sample.counts[i]), Strips::Load(sample.counts[i + 1]));
  }
  // Costs are below 2^15: 64 counts at 240.
  Halves32 best_cost = Strips::SetHalves(0x7FFF);
  Halves32 best = Strips::SetHalves(0);
  for (uint32_t candidate = 0; candidate < kExponentTables * kTops; ++candidate) {
    const uint16_t* prices = kPricePairs.of[candidate / kTops][candidate % kTops];
    Halves32 cost = Strips::Dot(prices[0], pairs[0]);
    for (uint32_t i = 1; i < kWindow / 2; ++i) {
      cost = Strips::Add(cost, Strips::Dot(prices[i], pairs[i]));
    }
    const Halves32 is_less = Strips::Above(best_cost, cost);
    best_cost = Strips::Choose(is_less, cost, best_cost);
    best = Strips::Choose(is_less, Strips::SetHalves(candidate), best);
  }
  static_assert(kTops == 2);
  Strips::Store(choice->tables, Strips::Narrow(Strips::Right<1>(best)));
  const Bytes32 top = Strips::Narrow(Strips::And(best, Strips::SetHalves(1)));
  Strips::Store(choice->above, Strips::Add(top, Strips::Set(kAboveMin)));
}

void ChoosePlanesTops(const PanelSample& sample, PanelChoice* choice) {
  Bytes32 most = Strips::Set(0);
  Bytes32 best = Strips::Set(kWindowAbove);
  for (uint32_t first = 0; first < kPlanesTops; ++first) {
    Bytes32 count = Strips::Load(sample.counts[first]);
    for (uint32_t i = 1; i < kPlanesReach; ++i) {
      count = Strips::Add(count, Strips::Load(sample.counts[first + i]));
    }
    const Bytes32 is_more = Strips::Above(count, most);
    most = Strips::Choose(is_more, count, most);
    best = Strips::Choose(is_more, Strips::Set(kWindowAbove - first), best);
  }
  Strips::Store(choice->tables, Strips::Set(0));
  Strips::Store(choice->above, best);
}

// Writes par; returns the strip's maximum exponent.
template <typename Type>
uint8_t ChooseParams(const StripSource<Type>& source, StripMode mode, uint8_t* par) {
  const uint32_t dim = source.shape.dim;
  uint8_t tops[kStripDimMax];
  uint32_t highest = 0;
  for (uint32_t first = 0; first < dim; first += kPanelWide) {
    PanelSample sample;
    PanelChoice choice;
    TakeSample(source, first, &sample);
    if (mode == StripMode::kLanes32) {
      ChooseTables(sample, &choice);
    } else {
      ChoosePlanesTops(sample, &choice);
    }
    for (uint32_t c = 0; c < kPanelWide && first + c < dim; ++c) {
      const bool is_dead = sample.means[c] == 0;
      const uint32_t top = LimitTop(sample.means[c] + choice.above[c]);
      tops[first + c] = static_cast<uint8_t>(top);
      par[first + c] = static_cast<uint8_t>(is_dead ? kDeadRel : choice.tables[c] << 4);
      if (!is_dead && top > highest) highest = top;
    }
  }
  const auto table_at = [&](uint32_t channel, uint32_t top) {
    PanelSample sample;
    TakeSample(source, channel / kPanelWide * kPanelWide, &sample);
    return TableForTop(sample.Of(channel % kPanelWide), top);
  };
  PlaceTops(tops, dim, highest, mode, table_at, par);
  return static_cast<uint8_t>(highest);
}

}  // namespace
}  // namespace cairn::codecs
