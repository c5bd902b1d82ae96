// SPDX-License-Identifier: Apache-2.0
#pragma once
// How often a property test runs.

#include <cstdint>
#include <cstdlib>

namespace cairn {

// Streams of random events that a test of a drive runs at least. CAIRN_PROPERTY_LIVES=N replaces
// it, as a soak does.
inline uint64_t LivesMin() {
  const char* const given = std::getenv("CAIRN_PROPERTY_LIVES");
  return given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
}

}  // namespace cairn
