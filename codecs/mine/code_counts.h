// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes the bits that counted symbols of the recipe `cairn` cost, and the tables under which
// they cost least.
//
// Thread-safety: pure functions. Nothing allocates.

#include "codecs/mine/profile_content.h"
#include "codecs/side/profile_sums.h"

namespace cairn::codecs {

// Makes the tables under which the counted symbols cost least. Values are centred, so the counts of
// a symbol and of its mirror image are added. Rare symbols get no frequency and are escapes.
void MakeTables(const CodeCounts& counts, const ShrinkSums& shrink,
                ProfileTable (&tables)[kProfileTables]);

// Returns the bits that the counted codes take with these tables, low bits included.
[[nodiscard]] double CodedBits(const CodeCounts& counts,
                               const ProfileTable (&tables)[kProfileTables]);

}  // namespace cairn::codecs
