// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of the index. Each part has its own state and keeps its own invariants. A part may call
// only the parts above it in this list:
//
//  RestStore       the records of blocks, images and copies, in use or at rest
//  WriteBackQueue  the images that the persistent tier lacks
//  TierSet         the copies in the tiers, which of them are held or leased, and their recency
//  Chains          names, parents, running puts, orphans
//  Removals        why blocks are gone
//  Hints           how long clients want blocks kept
//
// The functions here use several parts. The class Evictions makes room in the parts. BlockIndex
// owns the lock.
//
// Thread-safety: Thread-compatible (the index's lock).

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "service/index/block.h"
#include "service/index/chains.h"
#include "service/index/event_log.h"
#include "service/index/hints.h"
#include "service/index/removals.h"
#include "service/index/rest_store.h"
#include "service/index/tier_set.h"
#include "service/index/write_back_queue.h"
#include "service/tier/tier.h"

namespace cairn {

struct IndexParts {
  // The persistent tier, the clock and `events` must outlive this object. The other tiers are used
  // only during the call. `awake_bytes_max` limits the memory of blocks that are not at rest
  // (docs/internals/adr/0019-blocks-at-rest.md). `removals_max` and `hints_max` are the largest
  // numbers of entries.
  IndexParts(std::span<CopyTier* const> tiers, uint64_t blocks_max, uint64_t awake_bytes_max,
             uint32_t removals_max, uint64_t hints_max, const Clock& clock, EventLog& events);
  IndexParts(const IndexParts&) = delete;  // the parts refer to each other
  IndexParts& operator=(const IndexParts&) = delete;

  RestStore records;
  WriteBackQueue write_back;
  TierSet tiers;
  Chains chains;
  Removals removals;
  Hints hints;

  // Does the same as BlockIndex::Check().
  absl::StatusOr<std::optional<uint64_t>> Check(const BlockClaim& claim) const;
  // Returns the linked copy at that place of a tier, or null.
  Copy* FindCopy(TierId tier, const ImageFacts& image, uint64_t offset);
  // Adds an image, and its block if needed. Does not check limits. REQUIRES: a put of the block is
  // reserved.
  Image* Add(Block* block, NewImage image, absl::Time now);
  // Unlinks a block in every tier, and records why. Its copies are freed now or at their last
  // unpin.
  void Unlink(Block* block, RemovalReason reason);
  // Removes a damaged copy. If the image has no other copy, also removes the image; if the block
  // has no other image, also removes the block. REQUIRES: linked.
  void Lose(Copy* copy);
  // Unlinks a block that has lost its last image, and records why.
  void UnlinkIfEmpty(Block* block, RemovalReason reason);
  // Must be called when the hint of a block is due. If the hint had retained the block, resets its
  // rank. Otherwise demotes the block.
  void EndHint(const BlockName& name, const Hint& hint);
  // Records that the block is gone, or was refused.
  void NoteRemoval(const BlockName& name, RemovalReason reason);

 private:
  const Clock& clock_;
};

}  // namespace cairn
