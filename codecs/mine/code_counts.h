// SPDX-License-Identifier: Apache-2.0
#pragma once
// How often each symbol of the recipe `cairn` came in each table, what that costs, and the tables
// that make it cost the least.
//
// Thread-safety: values and pure functions. Nothing allocates.

#include <cstdint>

#include "codecs/mine/exact_sum.h"
#include "codecs/mine/profile_content.h"
#include "codecs/numbers/static_step.h"

namespace cairn::codecs {

struct CodeCounts {
  uint64_t symbols[kProfileTables][kCoderSymbols] = {};
  uint64_t low_bits = 0;  // that go raw

  void Add(StepShape shape, int32_t code) {
    const uint32_t symbol = StepSymbol(code, shape.low_bits);
    ++symbols[shape.table][symbol < kEscapeSymbol ? symbol : kEscapeSymbol];
  }
};

// What rounding took from codes of magnitude 1 and 2 without low bits, in steps.
struct ShrinkSums {
  ExactSum rest[kProfileTables][2];
  uint64_t count[kProfileTables][2] = {};

  void Add(StepShape shape, float position, int32_t code);
};

// Of a bell, for what is centred: counts of a symbol and of its mirror image are added. Rare
// symbols get no frequency and are escapes.
void MakeTables(const CodeCounts& counts, const ShrinkSums& shrink,
                ProfileTable (&tables)[kProfileTables]);

// What the codes counted take with these tables, low bits included.
[[nodiscard]] double CodedBits(const CodeCounts& counts,
                               const ProfileTable (&tables)[kProfileTables]);

}  // namespace cairn::codecs
