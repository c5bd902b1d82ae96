// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names and chains: the known blocks, their order in chains, the running puts, and the broken
// chains. Part of BlockIndex.
//
// State: the names, each block's parent and children, running puts, and the blocks with children
// whose `is_orphaned` may be out of date.
//
// Invariants:
//
// - A name is known while its block is present or expected (Block::has_place()) or has followers.
//   Chains are linked by name. So a missing block that is published again finds its children.
// - Links only join blocks whose first positions are one block apart. So a chain has no cycle.
// - A chain is broken at a block that is neither present nor expected. The blocks after it are
//   orphans: readers cannot use them until that block is published, and they are evicted first.
//   When a block appears or disappears, its followers are updated later. PropagateOrphans() updates
//   a few at a time; stale_parents_ has the blocks whose children still need it.
// - The last copies of a block are held while a child of the block is being put (TierSet).
//
// Thread-safety: Thread-compatible (the index's lock).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "service/index/block.h"
#include "service/index/name_table.h"
#include "service/index/rest_store.h"
#include "service/index/tier_set.h"
#include "service/tier/block_name.h"

namespace cairn {

class Chains {
 public:
  // Borrows its arguments.
  Chains(RestStore& records, TierSet& tiers, const Clock& clock)
      : records_(records), tiers_(tiers), clock_(clock), names_(records.blocks()) {}

  // --- Names

  // Returns null if the block has no images.
  Block* Find(const BlockName& name) const;
  // Does the same as Find(), but returns null if the block has expired.
  Block* FindUnexpired(const BlockName& name) const;
  // Returns null if the name is unknown. The block need not be linked.
  Block* FindKnown(const BlockName& name) const { return names_.Find(name); }

  // --- Expiry

  bool IsExpired(const Block& block) const;
  // Sets the block's expiry, unless the block already expires earlier. 0: never.
  void SetExpiry(Block* block, uint32_t unix_s);
  // The number of blocks with an expiry.
  uint64_t expiring_count() const { return expiring_count_; }

  // --- Places in chains

  // Errors: InvalidArgument if the claim contradicts the known parent or children.
  absl::Status CheckPlace(const BlockClaim& claim) const;
  // Begins a put. Until EndReservation(), its block counts as present for its followers, and the
  // last copies of the previous block are held. REQUIRES: CheckPlace() accepts the claim.
  Block* ReservePut(const BlockClaim& claim);
  void EndReservation(Block* block);
  // Makes the block present. REQUIRES: a put of the block is running.
  void Link(Block* block, absl::Time now);
  // Makes the block absent. REQUIRES: it is present, and has no images.
  void Unlink(Block* block);
  // Does the same as BlockIndex::LeasedAfter(), as far as `visits` allow.
  std::vector<BlockName> LeasedAfter(const BlockName& name, size_t count, Visits& visits) const;

  // --- Broken chains

  // Updates the followers of blocks that appeared or disappeared. Returns false if `visits` are
  // spent before all followers are updated.
  bool PropagateOrphans(Visits& visits);
  // Returns true if the block is present or expected, and its chain is broken.
  bool IsOrphaned(const BlockName& name) const;
  // Returns true if the block is in the follower's chain, before the follower. Returns `if_spent`
  // if `visits` are spent before this is known.
  bool IsBefore(const Block& block, const Block& follower, bool if_spent, Visits& visits) const;

  uint64_t bytes() const { return names_.bytes(); }

 private:
  Block* Know(const BlockName& name);  // adds a new name as missing
  void ForgetIfUnused(Block* block);
  void JoinCircle(Block* parent, Block* child);
  void LeaveCircle(Block* parent, Block* child);
  void EnterChain(Block* block, const BlockClaim& claim);
  void LosePlace(Block* block);
  void SetOrphaned(Block* block, bool is_orphaned);
  void SetStaleChildren(Block* block, uint32_t count);

  RestStore& records_;
  TierSet& tiers_;
  const Clock& clock_;
  NameTable names_;
  uint64_t expiring_count_ = 0;
  std::vector<Block*> stale_parents_;  // blocks whose children may be out of date
};

}  // namespace cairn
