// SPDX-License-Identifier: Apache-2.0
#pragma once
// Chooses the members that are asked for the blocks that this daemon lacks.
//
// All functions are pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace cairn {

inline constexpr size_t kHoldersMax = 4;       // known for one block
inline constexpr size_t kHoldersAskedMax = 3;  // members asked in one match

// The members that have a block, as indices into a list of members. The preferred one is first.
using HolderList = absl::InlinedVector<uint16_t, kHoldersMax>;

// Consecutive blocks that one member is asked for.
struct HolderRun {
  uint16_t member = 0;
  size_t first = 0;  // index of the key
  size_t count = 0;
  friend bool operator==(const HolderRun&, const HolderRun&) = default;
};

// `holders` has the holders of each key, from the first missing one on. The first run goes to the
// member that has most keys without a gap, the next run begins at the key after them, and so on. It
// ends at a key that no member has, or that would need more than `members_max` members. Of equal
// members, the one that is first in the list of the run's first key is chosen.
std::vector<HolderRun> ChooseHolders(std::span<const HolderList> holders,
                                     size_t members_max = kHoldersAskedMax);

}  // namespace cairn
