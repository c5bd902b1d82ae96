// SPDX-License-Identifier: Apache-2.0
#pragma once
// What became of a put that asked to be durable: to be found again after a loss of power. Whatever
// it is, the block is stored and is seen by everyone. docs/internals/formats/frame.md has the
// numbers.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn::proto {

enum class Durability : uint8_t {
  kNotAsked = 0,
  kDurable = 1,
  kNoTier = 2,     // the daemon has no tier that lasts
  kReadOnly = 3,   // the tier takes no writes, or is out
  kNoRoom = 4,     // it has no room now, or its write budget is spent
  kLate = 5,       // not by the put's deadline
  kAncestors = 6,  // a block before it is not there, or is not durable itself
  kTooLarge = 7,   // an image larger than the tier takes
  kGone = 8,       // deleted or evicted meanwhile
  kStopping = 9,   // the daemon is stopping
};
inline constexpr size_t kDurabilityCount = 10;

// As metrics, Python and cairnctl say it.
constexpr std::string_view Name(Durability durability) {
  constexpr std::array<std::string_view, kDurabilityCount> kNames = {
      "not_asked", "durable",   "no_tier",   "read_only", "no_room",
      "late",      "ancestors", "too_large", "gone",      "stopping"};
  return kNames[static_cast<size_t>(durability)];
}

}  // namespace cairn::proto
