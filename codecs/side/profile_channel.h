// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of a profile (codecs/side/profile.h) that coders read: plain values, free of the
// standard library, for hosts and devices.
//
// Thread-safety: values.

#include <cstdint>

#include "codecs/pack/lanes32.h"
#include "codecs/pack/lanes32_lookup.h"

namespace cairn::codecs {

inline constexpr uint32_t kProfileDimMax = 1024;
inline constexpr uint32_t kProfileTables = 21;  // a plane
inline constexpr uint64_t kProfileChannelBytes = 8;
inline constexpr int32_t kProfileLogMax = 16384;        // of a step or a spread; 256 an octave
inline constexpr int32_t kProfileMultiplierMax = 4096;  // likewise

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

// What the codes of one plane have in common. Borrowed from the profile, or a copy of it in a
// device's memory.
struct ProfileTables {
  const CoderTable* tables;    // kProfileTables
  const CoderLookup* lookups;  // kProfileTables
  // Of the codes of magnitude 1 and 2, in steps: of each table, and none of codes with low bits.
  const float (*offsets)[2];
  // What symbols of codes without low bits stand for, in steps, of each table; the escape is 0.
  const float (*symbol_codes)[kCoderSymbols];
  bool has_exact_lookups;  // all of them
};

}  // namespace cairn::codecs
