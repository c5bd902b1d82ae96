// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes the size in bits of the codes of the recipe `cairn` from counts of their symbols, and
// the entropy-coding tables that make this size smallest.
//
// Thread-safety: pure functions. They do not allocate.

#include "codecs/mine/profile_content.h"
#include "codecs/side/profile_sums.h"

namespace cairn::codecs {

// Makes the tables that minimize the size of the counted symbols. Values are distributed around 0,
// so the tables use the sum of the counts of a symbol and of its mirror image. A rare symbol gets
// no frequency and is coded as an escape.
void MakeTables(const CodeCounts& counts, const ShrinkSums& shrink,
                ProfileTable (&tables)[kProfileTables]);

// Returns the size in bits of the counted codes with these tables, low bits included.
[[nodiscard]] double CodedBits(const CodeCounts& counts,
                               const ProfileTable (&tables)[kProfileTables]);

}  // namespace cairn::codecs
