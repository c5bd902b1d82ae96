// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names and chains: which blocks are known, which block follows which, which are being put, and
// which chains are broken. Part of BlockIndex.
//
// State: the names, the parent and children of each block, running puts, and the blocks whose
// children may disagree on whether their chain is broken.
//
// Invariants:
//
// - A name is known while its block is present or expected (Block::has_place()), or has followers.
//   Chains are kept by name: a missing parent knows its children once it is published again.
// - Links only join first positions that are one block apart, so a chain is no circle.
// - A chain is broken at a block that is neither present nor expected: the blocks behind it are
//   orphans. They are useless until that block comes, and are evicted first. When a block appears
//   or disappears, the state of its followers changes later: PropagateOrphans() updates a few at a
//   time, and stale_parents_ has the blocks with children that are not up to date.
// - The last copies of a block are held while a child of it is being put (TierSet).
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
  // Like Find(), but null if the block has expired.
  Block* FindUnexpired(const BlockName& name) const;
  // Linked or not; null: the name is unknown.
  Block* FindKnown(const BlockName& name) const { return names_.Find(name); }

  // --- Expiry

  bool IsExpired(const Block& block) const;
  // The block expires then, unless earlier. 0: never.
  void SetExpiry(Block* block, uint32_t unix_s);
  // Blocks with an expiry.
  uint64_t expiring_count() const { return expiring_count_; }

  // --- Places in chains

  // Errors: InvalidArgument if the claim contradicts what is known of its parent or its children.
  absl::Status CheckPlace(const BlockClaim& claim) const;
  // Begins a put: until EndReservation() its block counts as present for its followers, and the
  // last copies of the previous block are held. REQUIRES: its place is valid.
  Block* ReservePut(const BlockClaim& claim);
  void EndReservation(Block* block);
  // The block is present from now on. REQUIRES: it is being put.
  void Link(Block* block, absl::Time now);
  // The block is present no more. REQUIRES: it was, and has no images.
  void Unlink(Block* block);
  // Like BlockIndex::LeasedAfter(), as far as `visits` allow.
  std::vector<BlockName> LeasedAfter(const BlockName& name, size_t count, Visits& visits) const;

  // --- Broken chains

  // Updates the followers of blocks that came or went. Returns false if `visits` are spent before
  // all are updated.
  bool PropagateOrphans(Visits& visits);
  // Returns whether a block of that name is present or expected, and its chain is broken.
  bool IsOrphaned(const BlockName& name) const;
  // Returns whether the follower's chain contains the block; `if_spent` if `visits` do not suffice
  // to tell.
  bool IsBefore(const Block& block, const Block& follower, bool if_spent, Visits& visits) const;

  uint64_t bytes() const { return names_.bytes(); }

 private:
  Block* Know(const BlockName& name);  // as missing, if it is new
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
  std::vector<Block*> stale_parents_;  // blocks with children that may disagree
};

}  // namespace cairn
