// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes the size in bits of counted symbols of the recipe `cairn`, and the tables that make it
// smallest.
//
// Thread-safety: pure functions. Nothing allocates.

#include "codecs/mine/profile_content.h"
#include "codecs/side/profile_sums.h"

namespace cairn::codecs {

// Makes the tables that minimize the size of the counted symbols. Values are centred, so the counts
// of a symbol and of its mirror image are added. Rare symbols get no frequency and are coded as
// escapes.
void MakeTables(const CodeCounts& counts, const ShrinkSums& shrink,
                ProfileTable (&tables)[kProfileTables]);

// Returns the size in bits of the counted codes with these tables, low bits included.
[[nodiscard]] double CodedBits(const CodeCounts& counts,
                               const ProfileTable (&tables)[kProfileTables]);

}  // namespace cairn::codecs
