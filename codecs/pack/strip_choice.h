// SPDX-License-Identifier: Apache-2.0
#pragma once
// Chooses the maximum exponent and the universal table of each channel, for an encoder of strips.
// The choice depends on a sample of the exponents and uses integers, so every backend makes the
// same choice. The format allows any choice. docs/recipes/exact.md states the one made here, and
// the golden vectors contain it.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/pack/exponent_tables.h"
#include "codecs/pack/strip.h"

namespace cairn::codecs {

// Returns the stride of the sample. The sample has every token of a strip of up to 64 tokens, and
// every other token of a longer strip.
CAIRN_HD uint32_t SampleStride(uint32_t tokens) { return tokens > 64 ? 2 : 1; }
CAIRN_HD uint32_t SampleCount(uint32_t tokens) {
  return (tokens + SampleStride(tokens) - 1) / SampleStride(tokens);
}

// Exponents are counted in a window from 4 above their mean to 7 below it.
inline constexpr uint32_t kWindow = 12;
inline constexpr uint32_t kWindowAbove = 4;

struct ChannelSample {
  uint32_t mean;             // as MeanOf() returns it
  uint32_t counts[kWindow];  // [i] counts exponents of mean + kWindowAbove - i, modulo 256
};

// Returns the mean of the `count` exponents that are not 0, rounded to nearest. If fewer than half
// of the `samples` are not 0, the channel counts as dead, and the result is 0.
CAIRN_HD uint32_t MeanOf(uint32_t sum, uint32_t count, uint32_t samples) {
  return 2 * count < samples ? 0 : (2 * sum + count) / (2 * count);
}

CAIRN_HD bool IsDead(const ChannelSample& sample) { return sample.mean == 0; }

// Returns the cost of the sample with a table whose maximum exponent is `above` above the mean.
CAIRN_HD uint32_t CostOf(const ChannelSample& sample, uint32_t table, int32_t above) {
  uint32_t cost = 0;
  for (uint32_t i = 0; i < kWindow; ++i) {
    const int32_t symbol = above - static_cast<int32_t>(kWindowAbove) + static_cast<int32_t>(i);
    const bool is_coded = symbol >= 0 && symbol < static_cast<int32_t>(kEscapeSymbol);
    cost += sample.counts[i] *
            kExponentCosts[table][is_coded ? symbol : static_cast<int32_t>(kEscapeSymbol)];
  }
  return cost;
}

struct TableChoice {
  uint32_t table;
  int32_t above;
};

// Strips with fewer tokens are also tried in mode planes, because lanes32 needs 64 bytes for its
// states.
inline constexpr uint32_t kPlanesTriedBelowTokens = 64;

inline constexpr int32_t kAboveMin = 3;  // maximum exponents to try: 3 and 4 above the mean
inline constexpr int32_t kAboveMax = 4;

// Returns the cheapest choice. If several cost the same, the lowest table is chosen, and then the
// lowest maximum.
CAIRN_HD TableChoice ChooseTable(const ChannelSample& sample, int32_t above_min,
                                 int32_t above_max) {
  TableChoice best{0, above_min};
  uint32_t best_cost = ~0U;
  for (uint32_t table = 0; table < kExponentTables; ++table) {
    for (int32_t above = above_min; above <= above_max; ++above) {
      const uint32_t cost = CostOf(sample, table, above);
      if (cost < best_cost) {
        best = {table, above};
        best_cost = cost;
      }
    }
  }
  return best;
}

// In mode planes, the codes cover 7 exponents from the maximum down. The maximum is one of the
// five values from 4 above the mean down to the mean. The one whose 7 exponents occur most often in
// the sample is chosen. If several occur equally often, the highest is chosen.
inline constexpr uint32_t kPlanesTops = 5;

CAIRN_HD int32_t ChoosePlanesTop(const ChannelSample& sample) {
  uint32_t best = 0;
  uint32_t most = 0;
  for (uint32_t first = 0; first < kPlanesTops; ++first) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < kPlanesReach; ++i) count += sample.counts[first + i];
    if (count > most) {
      best = first;
      most = count;
    }
  }
  return static_cast<int32_t>(kWindowAbove) - static_cast<int32_t>(best);
}

CAIRN_HD uint32_t LimitTop(int32_t top) { return top > 255 ? 255 : static_cast<uint32_t>(top); }

// Writes rel, the distance of each channel's maximum below the strip's maximum, into par. par
// already has the tables of the channels, and kDeadRel for dead channels. If a channel is too far
// below the strip's maximum, it gets the lowest maximum that rel can express. In mode lanes32 its
// table is then chosen again.
//   tops               maximum exponents of channels that are not dead
//   highest            the strip's maximum exponent
//   table_at(c, top)   returns the table of channel c for this maximum
template <typename TableAt>
CAIRN_HD void PlaceTops(const uint8_t* tops, uint32_t dim, uint32_t highest, StripMode mode,
                        TableAt table_at, uint8_t* par) {
  for (uint32_t c = 0; c < dim; ++c) {
    if (par[c] == kDeadRel) continue;
    uint32_t rel = highest - tops[c];
    if (rel >= kDeadRel) {
      rel = kDeadRel - 1;
      if (mode == StripMode::kLanes32) {
        par[c] = static_cast<uint8_t>(table_at(c, highest - rel) << 4);
      }
    }
    par[c] = static_cast<uint8_t>(par[c] | rel);
  }
}

// Returns the table of a channel whose maximum exponent is given.
CAIRN_HD uint32_t TableForTop(const ChannelSample& sample, uint32_t top) {
  const auto above = static_cast<int32_t>(top - sample.mean);
  return ChooseTable(sample, above, above).table;
}

}  // namespace cairn::codecs
