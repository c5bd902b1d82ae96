// SPDX-License-Identifier: Apache-2.0
#include "service/index/evictions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Returns true if the index itself is full. An evicted block then leaves every tier.
bool IsOfIndex(EvictionReason reason) {
  return reason == EvictionReason::kBlocks || reason == EvictionReason::kImages;
}

}  // namespace

Evictions::Evictions(IndexParts& parts, uint64_t blocks_max, uint64_t images_max)
    : parts_(parts), blocks_max_(blocks_max), images_max_(images_max) {
  CAIRN_CHECK(blocks_max > 0 && images_max > 0);
}

uint64_t Evictions::Evict(Block* block, TierId tier, EvictionReason reason) {
  const uint64_t freed = parts_.tiers.Evict(block, tier, reason);
  parts_.UnlinkIfEmpty(block, RemovalReason::kEvicted);
  return freed;
}

// --- By age --------------------------------------------------------------------------------------

uint64_t Evictions::EvictOldest(Eviction& eviction, Visits& visits) {
  eviction.is_past_leaves = false;
  if (!parts_.chains.PropagateOrphans(visits)) {
    return 0;
  }
  Block* block = Oldest(eviction, visits);
  return block == nullptr ? 0 : Evict(block, eviction.tier, eviction.reason);
}

Block* Evictions::Oldest(Eviction& eviction, Visits& visits) {
  TierSet& tiers = parts_.tiers;
  if (!tiers.is_leaf_first(eviction.tier)) {
    return nullptr;
  }
  const size_t order_count =
      IsOrphaned(eviction.newcomer) ? TierSet::kOrphaned + 1 : TierSet::kOrderCount;
  Block* leaf = nullptr;
  for (size_t i = 0; leaf == nullptr && i < order_count; ++i) {
    if (TierSet::Order& order = tiers.order(eviction.tier, i); order.has_unheld()) {
      leaf = OldestLeaf(order, eviction.tier, visits);
      if (leaf == nullptr) {
        return nullptr;
      }
    }
  }
  // A block that is also in the persistent tier is not lost, so its eviction breaks no chain. Nor
  // is one that another member has.
  const bool is_dirty =
      leaf == nullptr || (leaf->rank != kFetchedRank && parts_.write_back.HasDirty(*leaf));
  if (is_dirty && eviction.tier == TierId::kHost && !IsOfIndex(eviction.reason)) {
    // Evict no block that should be kept longer than the leaf.
    const uint8_t rank_max = leaf == nullptr     ? kRankCount
                             : leaf->is_orphaned ? kPlainRank
                                                 : static_cast<uint8_t>(leaf->rank);
    Block* clean = parts_.write_back.OldestClean(rank_max, visits);
    if (clean != nullptr || (leaf == nullptr && visits.is_spent())) {
      return clean;
    }
  }
  if (leaf != nullptr) {
    return leaf;
  }
  if (tiers.is_all_held(eviction.tier)) {
    return nullptr;
  }
  // All remaining unheld blocks have held children.
  eviction.is_past_leaves = true;
  // Begin with whole chains. Of a broken chain, usually only held leaves are left.
  for (size_t i = 1; i <= order_count; ++i) {
    const size_t order = i == order_count ? size_t{TierSet::kOrphaned} : i;
    Block* block = PastHeldLeaves(tiers.order(eviction.tier, order), eviction, visits);
    if (block != nullptr || visits.is_spent()) {
      return block;
    }
  }
  return nullptr;
}

Block* Evictions::OldestLeaf(TierSet::Order& order, TierId tier, Visits& visits) {
  for (;;) {  // until `visits` are spent or all leaves were examined
    Block* leaf = order.recency->Oldest(visits);
    if (leaf == nullptr || leaf->in(IndexOf(tier)).held_count == 0) {
      return leaf;
    }
    parts_.records.Use(leaf);  // a held block counts as just used
    if (!visits.Take()) {
      return nullptr;
    }
  }
}

Block* Evictions::PastHeldLeaves(TierSet::Order& order, const Eviction& eviction, Visits& visits) {
  Block* last_resort = nullptr;
  for (;;) {  // until `visits` are spent or all leaves were examined
    Block* leaf = order.recency->Oldest(visits);
    if (leaf == nullptr || leaf->last_use > eviction.since) {
      return last_resort;
    }
    const bool is_fresh = visits.count() == 0;
    bool is_being_put = false;
    Block* ancestor = UnheldAncestor(*leaf, eviction, &is_being_put, visits);
    if (ancestor != nullptr && !is_being_put) {
      return ancestor;
    }
    if (ancestor != nullptr &&
        (last_resort == nullptr || ancestor->first_position > last_resort->first_position)) {
      last_resort = ancestor;  // the candidate with the largest position
    }
    // Skip a leaf whose held ancestors do not fit into one hold.
    if (visits.is_spent() && !is_fresh) {
      return last_resort;
    }
    parts_.records.Use(leaf);
    if (!visits.Take()) {
      return last_resort;
    }
  }
}

Block* Evictions::UnheldAncestor(Block& block, const Eviction& eviction, bool* is_being_put,
                                 Visits& visits) {
  const size_t tier = IndexOf(eviction.tier);
  const Block* newcomer =
      eviction.newcomer == nullptr ? nullptr : parts_.chains.FindKnown(*eviction.newcomer);
  for (Block* last = &block; last->parent != kNoSlot;) {
    *is_being_put |= last->child_put_count() > 0;
    Block* ancestor = parts_.records.ParentOf(*last);
    if (ancestor->in(tier).copy_count > 0 && ancestor->in(tier).held_count == 0) {
      // Cut a chain that is being put only for a block before the cut.
      const bool may_go =
          *is_being_put
              ? newcomer != nullptr &&
                    parts_.chains.IsBefore(*newcomer, *ancestor, /*if_spent=*/false, visits)
              : newcomer == nullptr ||
                    !parts_.chains.IsBefore(*ancestor, *newcomer, /*if_spent=*/true, visits);
      return may_go ? ancestor : nullptr;
    }
    if (!visits.Take()) {
      return nullptr;
    }
    last = ancestor;
  }
  return nullptr;
}

// --- By place ------------------------------------------------------------------------------------

bool Evictions::EvictWindow(Arena& arena, uint64_t bytes, const BlockName* newcomer,
                            uint64_t* bytes_passed, Visits& visits) {
  if (!parts_.chains.PropagateOrphans(visits)) {
    return false;
  }
  const bool is_orphaned = IsOrphaned(newcomer);
  Block* block = newcomer == nullptr ? nullptr : parts_.chains.FindKnown(*newcomer);
  ++search_;
  uint64_t unknown_below = 0;  // below it, a block may be an unexamined ancestor
  for (Block* before = block == nullptr ? nullptr : parts_.records.ParentOf(*block);
       before != nullptr; before = parts_.records.ParentOf(*before)) {
    if (!visits.Take()) {
      unknown_below = before->end_position();
      break;
    }
    if (before->is_awake()) {  // other blocks have no copies there
      before->awake->search = search_;
    }
  }
  const auto cost = [&](void* owner) -> uint64_t {
    const Copy& copy = *static_cast<const Copy*>(owner);
    const Block& owned = *copy.image->block;
    const BlockInTier& in = owned.awake->in[IndexOf(TierId::kHost)];
    const bool may_be_before = owned.first_position < unknown_below && owned.follower_count > 0 &&
                               owned.name.space_id == newcomer->space_id;
    if (in.held_count > 0 || owned.awake->search == search_ || may_be_before ||
        (is_orphaned && !owned.is_orphaned)) {
      return UINT64_MAX;
    }
    // The whole block is evicted, and its copies have similar sizes.
    const uint64_t block_bytes = copy.facts.image_bytes * in.copy_count;
    // An orphan is cheap, because it is useless without its parent.
    if (owned.is_orphaned) {
      return block_bytes / 16;
    }
    const uint64_t with_children = block_bytes * (1 + std::min<uint64_t>(in.child_count, 16));
    return owned.rank < kPlainRank    ? with_children / 4
           : owned.rank == kPlainRank ? with_children
                                      : with_children * 32 * (owned.rank - kPlainRank);
  };
  const std::vector<void*> owners =
      arena.CheapestWindow(bytes, limits::kVisitsPerHoldMax, cost, bytes_passed);
  // A block with several images in the window is evicted once, with its first image.
  std::vector<Block*> blocks;
  for (void* owner : owners) {
    blocks.push_back(static_cast<Copy*>(owner)->image->block);
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  for (Block* evicted : blocks) {
    Evict(evicted, TierId::kHost, EvictionReason::kWindow);
  }
  return !blocks.empty();
}

// --- For the limits of the index -----------------------------------------------------------------

absl::Status Evictions::MakeRoom(Block* block, absl::Time now) {
  Visits settling, visits;
  parts_.chains.PropagateOrphans(settling);  // the next call continues the work that is left
  MakeRoomForAwake(block->name);
  if (parts_.records.is_full_of_awake()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "index: blocks in memory or in use take all ", parts_.records.awake_bytes_max(),
        " bytes of their limit, and all are pinned or ancestors of the new block"));
  }
  for (;;) {  // each iteration evicts a block
    const bool is_of_images = parts_.tiers.figures().image_count >= images_max_;
    if (!is_of_images && (block->is_linked || block_count() < blocks_max_)) {
      return absl::OkStatus();
    }
    if (block->is_linked) {
      parts_.tiers.Touch(block, now);  // makes it the last block to be evicted
    }
    if (!EvictAnywhere(is_of_images ? EvictionReason::kImages : EvictionReason::kBlocks,
                       block->name, visits)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "index: ", is_of_images ? images_max_ : blocks_max_, is_of_images ? " images" : " blocks",
          " are stored, and all are pinned or ancestors of the new block"));
    }
  }
}

void Evictions::MakeRoomForAwake(const BlockName& newcomer) {
  Visits visits;
  while (parts_.records.awake_bytes() >
         parts_.records.awake_bytes_max() / 100 * limits::kAwakePercentBusy) {
    bool has_evicted = false;
    // Begin with the GPU tier, because its copies are never the only ones.
    for (const TierId tier : {TierId::kGpu, TierId::kHost}) {
      Eviction eviction = {.tier = tier,
                           .reason = EvictionReason::kIndex,
                           .newcomer = &newcomer,
                           .since = parts_.records.uses()};
      Block* block = visits.Take() ? Oldest(eviction, visits) : nullptr;
      if (block != nullptr) {
        Evict(block, tier, EvictionReason::kIndex);
        has_evicted = true;
        break;
      }
    }
    if (!has_evicted) {
      return;
    }
    parts_.records.Rest();
  }
}

bool Evictions::EvictAnywhere(EvictionReason reason, const BlockName& newcomer, Visits& visits) {
  // Begin with the slowest tier: blocks that are only there were unused for longest.
  for (auto tier = kReadOrder.rbegin(); tier != kReadOrder.rend(); ++tier) {
    Eviction eviction = {
        .tier = *tier, .reason = reason, .newcomer = &newcomer, .since = parts_.records.uses()};
    Block* block = Oldest(eviction, visits);
    if (block == nullptr) {
      continue;
    }
    // Evict from the other tiers first, so that held copies there keep the block.
    const BlockName name = block->name;
    for (const TierId other : kReadOrder) {
      block = parts_.chains.Find(name);
      if (block != nullptr && parts_.records.HasCopiesIn(*block, other) &&
          block->in(IndexOf(other)).held_count == 0) {
        Evict(block, other, reason);
      }
    }
    return true;
  }
  return false;
}

}  // namespace cairn
