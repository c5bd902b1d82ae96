// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the members of a cluster call a block when they tell each other where it is.
//
// A chain is cut by position into runs: the blocks 0, 1, 2-3, 4-7, 8-15, … The first key of a run
// names the run. All blocks of a run have the same homes (service/peer/homes.h). A chain of L
// blocks has about log2(L) + 1 runs. docs/internals/locations.md describes both;
// tests/golden/homes has test vectors. All functions are pure and thread-safe.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "proto/block_key.h"

namespace cairn::proto {

// The first 16 bytes of SHA-256(fingerprint, key).
using LocationName = std::array<std::byte, 16>;

LocationName NameLocation(const Fingerprint& space, const BlockKey& key);

// Returns the position, in blocks, at which the run of the block at `position` begins.
constexpr uint64_t RunFirst(uint64_t position) { return std::bit_floor(position); }

inline constexpr uint64_t kNoRun = 0;  // the run of a block is unknown
// The first 8 bytes of the run's first key, little-endian.
uint64_t RunOf(const BlockKey& first_key);

}  // namespace cairn::proto
