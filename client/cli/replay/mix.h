// SPDX-License-Identifier: Apache-2.0
#pragma once
// Thread-safety: a pure function.

#include <cstdint>

namespace cairn::replay {

// splitmix64: returns the output for its counter.
inline uint64_t Mix(uint64_t counter) {
  uint64_t value = counter * 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

}  // namespace cairn::replay
