// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sums over a sample from which a profile is made (docs/recipes/cairn.md), and the amounts that
// an element adds to them. All sums are over integers, so the order of additions does not matter.
// Every division of a sample, on hosts and on devices, gives the same sums.
//
// Thread-safety: values and pure functions. Free of the standard library, so that hosts and devices
// can use them.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/numbers/static_step.h"
#include "codecs/pack/lanes32.h"
#include "codecs/side/profile_channel.h"

namespace cairn::codecs {

// The number of parts of a sample. Each part is also coded with statistics of the other parts only.
// Its size then estimates the size of text that is not in the sample.
inline constexpr uint32_t kSampleParts = 4;
inline constexpr uint64_t kTokensSkipped = 4;  // first tokens of a chain; attention uses them
                                               // as sinks
inline constexpr uint32_t kFindStride = 4;     // bits of rates are counted for every fourth token

// ---- Moments ----

// Sums of values and of their squares. Each value is in units of 2^-36, rounded towards zero.
// REQUIRES: fewer than 2^24 values, each at most 2^15.5 in magnitude. (RoPE can rotate a pair of
// kMagnitudeMax to such a value.)
struct ExactMoments {
  __int128 sum = 0;
  __int128 squares = 0;

  CAIRN_HD_MEMBER void Add(float value) {
    const auto units = static_cast<int64_t>(static_cast<double>(value) * kUnits);
    sum += units;
    squares += static_cast<__int128>(units) * units;
  }
  CAIRN_HD_MEMBER void Add(const ExactMoments& others) {
    sum += others.sum;
    squares += others.squares;
  }
  [[nodiscard]] double Sum() const { return static_cast<double>(sum) / kUnits; }
  [[nodiscard]] double Squares() const { return static_cast<double>(squares) / (kUnits * kUnits); }

  static constexpr double kUnits = 68719476736.0;  // 2^36
};

// The number of tokens and strips that were added for a head.
struct HeadTokens {
  uint64_t of[kSampleParts] = {};  // tokens of each part
  uint64_t strips = 0;             // strips, including those without a counted token

  void Add(const HeadTokens& others) {
    for (uint32_t i = 0; i < kSampleParts; ++i) of[i] += others.of[i];
    strips += others.strips;
  }
};

// ---- Codes ----

// Counts the codes of all channels with one step, which is `multiplier` (256 * log2) above the
// profile's step.
struct alignas(8) CodeColumn {
  int32_t multiplier = 0;
  bool is_unseen = false;   // subtract the means of the other parts of the sample
  bool is_strided = false;  // count only tokens at every kFindStride-th position
  bool has_shrink = false;  // ShrinkSums are computed, too
};

// The results for a channel before its codes are counted.
struct alignas(8) MinedChannel {
  ProfileChannel profile;
  float unseen_means[kSampleParts] = {};  // means of the other parts
};

struct CodeRate {
  StepShape shape;
  float inverse;  // 1 / step
};

CAIRN_HD CodeRate RateOf(const ProfileChannel& channel, int32_t multiplier) {
  const int32_t step = channel.step_log + multiplier;
  return {StepShapeOf(channel.spread_log - step), Exp2(-step)};
}

// Returns the distance of a value from the mean, in steps.
CAIRN_HD float PositionOf(float value, float mean, float inverse) {
  return Multiply(Add(value, -mean), inverse);
}

// Returns the code of a position. A position beyond all codes becomes an escape in any case.
CAIRN_HD int32_t CodeAt(float position) {
  const float low = position < -kStepCodeMax ? -kStepCodeMax : position;
  return RoundToInt(low > kStepCodeMax ? kStepCodeMax : low);
}

CAIRN_HD uint32_t CountedSymbol(StepShape shape, int32_t code) {
  const uint32_t symbol = StepSymbol(code, shape.low_bits);
  return symbol < kEscapeSymbol ? symbol : kEscapeSymbol;
}

// The number of occurrences of each symbol in each table.
struct CodeCounts {
  uint64_t symbols[kProfileTables][kCoderSymbols] = {};
  uint64_t low_bits = 0;  // number of low bits, which are stored without coding

  void Add(StepShape shape, int32_t code) {
    ++symbols[shape.table][CountedSymbol(shape, code)];
    low_bits += shape.low_bits;
  }
  void Add(const CodeCounts& others) {
    for (uint32_t i = 0; i < kProfileTables * kCoderSymbols; ++i) {
      symbols[i / kCoderSymbols][i % kCoderSymbols] +=
          others.symbols[i / kCoderSymbols][i % kCoderSymbols];
    }
    low_bits += others.low_bits;
  }
};

inline constexpr uint32_t kShrunkCodes = 2;  // magnitudes 1 and 2

// Returns the rounding error of a position whose code has this magnitude, in units of 2^-32. It is
// at most 1/2.
CAIRN_HD int64_t ShrinkUnits(float position, uint32_t magnitude) {
  const float size = position < 0.0F ? -position : position;
  return static_cast<int64_t>(static_cast<double>(Add(size, -static_cast<float>(magnitude))) *
                              4294967296.0);
}

// Sums of the rounding errors of codes of magnitude 1 and 2 without low bits. REQUIRES: fewer than
// 2^31 codes.
struct ShrinkSums {
  int64_t rest[kProfileTables][kShrunkCodes] = {};
  uint64_t count[kProfileTables][kShrunkCodes] = {};

  void Add(StepShape shape, float position, int32_t code) {
    const auto magnitude = static_cast<uint32_t>(code < 0 ? -code : code);
    if (shape.low_bits != 0 || magnitude < 1 || magnitude > kShrunkCodes) return;
    rest[shape.table][magnitude - 1] += ShrinkUnits(position, magnitude);
    ++count[shape.table][magnitude - 1];
  }
  void Add(const ShrinkSums& others) {
    for (uint32_t i = 0; i < kProfileTables * kShrunkCodes; ++i) {
      rest[i / kShrunkCodes][i % kShrunkCodes] += others.rest[i / kShrunkCodes][i % kShrunkCodes];
      count[i / kShrunkCodes][i % kShrunkCodes] += others.count[i / kShrunkCodes][i % kShrunkCodes];
    }
  }
  // Returns the sum, in steps.
  [[nodiscard]] double Rest(uint32_t table, uint32_t code) const {
    return static_cast<double>(rest[table][code]) / 4294967296.0;
  }
};

}  // namespace cairn::codecs
