// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of a profile (codecs/side/profile.h) that coders read. They are plain values, free of
// the standard library, so that hosts and devices can use them.
//
// Thread-safety: values.

#include <cstdint>

#include "codecs/pack/lanes32.h"
#include "codecs/pack/lanes32_lookup.h"

namespace cairn::codecs {

inline constexpr uint32_t kProfileDimMax = 1024;
inline constexpr uint32_t kProfileTables = 21;  // tables of a plane
inline constexpr uint64_t kProfileChannelBytes = 8;
inline constexpr int32_t kProfileLogMax = 16384;        // limit for a step or a spread; 256 per
                                                        // octave
inline constexpr int32_t kProfileMultiplierMax = 4096;  // 256 per octave, too

// One channel of one head.
struct ProfileChannel {
  float mean = 0;
  int16_t step_log = 0;    // 256 * log2
  int16_t spread_log = 0;  // 256 * log2
};

// One (layer, head) of the group.
struct ProfileHead {
  uint32_t layer = 0;
  uint32_t head = 0;
};

// Tables that all codes of one plane share. Borrowed from the profile, or from a copy of it in
// device memory.
struct ProfileTables {
  const CoderTable* tables;    // kProfileTables
  const CoderLookup* lookups;  // kProfileTables
  // For each table, the offsets of the codes of magnitude 1 and 2, in steps. Codes with low bits
  // have offsets of 0.
  const float (*offsets)[2];
  // For each table, the values of the symbols of codes without low bits, in steps. The escape has
  // 0.
  const float (*symbol_codes)[kCoderSymbols];
  bool has_exact_lookups;  // true if all lookups are exact
};

}  // namespace cairn::codecs
