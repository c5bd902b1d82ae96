// SPDX-License-Identifier: Apache-2.0
#pragma once
// The outcome of a put that asked to be durable, that is, to survive a power loss. In all cases the
// block is stored and visible. docs/internals/formats/frame.md has the numbers.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn::proto {

enum class Durability : uint8_t {
  kNotAsked = 0,
  kDurable = 1,
  kNoTier = 2,     // the daemon has no persistent tier
  kReadOnly = 3,   // the tier is read-only or failed
  kNoRoom = 4,     // the tier has no room now, or its write budget is spent
  kLate = 5,       // not by the put's deadline
  kAncestors = 6,  // a block before it is missing or not durable
  kTooLarge = 7,   // the image is larger than the tier accepts
  kGone = 8,       // deleted or evicted in the meantime
  kStopping = 9,   // the daemon is stopping
};
inline constexpr size_t kDurabilityCount = 10;

// Returns the name used in metrics, Python and cairnctl.
constexpr std::string_view Name(Durability durability) {
  constexpr std::array<std::string_view, kDurabilityCount> kNames = {
      "not_asked", "durable",   "no_tier",   "read_only", "no_room",
      "late",      "ancestors", "too_large", "gone",      "stopping"};
  return kNames[static_cast<size_t>(durability)];
}

}  // namespace cairn::proto
