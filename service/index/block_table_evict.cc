// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "service/index/block_table.h"
#include "service/limits.h"

namespace cairn {
namespace {

// The index itself is full: what goes leaves every tier.
bool IsOfIndex(EvictionReason reason) {
  return reason == EvictionReason::kBlocks || reason == EvictionReason::kImages;
}

}  // namespace

uint64_t BlockTable::EvictFrom(Block* block, TierId tier, EvictionReason reason) {
  CountEvicted(*block, tier, reason);
  uint64_t freed = 0;
  ImageList images;
  for (const ImageRef& ref : Wake(block)) {
    images.push_back(ref.image);
  }
  for (Image* image : images) {  // the block may go with the last
    if (Copy* copy = image->copies[IndexOf(tier)]; copy != nullptr) {
      CAIRN_CHECK(!copy->is_held);
      if (IsDirty(*copy)) {
        ++At(tier).evicted_dirty_images;
        At(tier).evicted_dirty_bytes += copy->facts.image_bytes;
      }
      freed += UnlinkCopy(copy);
      UnlinkIfLost(image);
    }
  }
  At(tier).evicted_bytes[static_cast<size_t>(reason)] += freed;
  return freed;
}

void BlockTable::CountEvicted(const Block& block, TierId tier, EvictionReason reason) {
  ++At(tier).evicted_blocks[static_cast<size_t>(reason)];
  At(tier).figures.evicted_for_index +=
      IsOfIndex(reason) || reason == EvictionReason::kIndex ? 1 : 0;
  const absl::Duration unused = clock_.Now() - absl::FromUnixSeconds(block.used_at_s);
  At(tier).evicted_unused_seconds.Observe(std::max(unused, absl::ZeroDuration()));
}

// --- What may go for whom ------------------------------------------------------------------------

bool BlockTable::IsOrphaned(const BlockName* newcomer) const {
  const Block* block = newcomer == nullptr ? nullptr : FindKnown(*newcomer);
  return block != nullptr && block->has_place() && block->is_orphaned;
}

bool BlockTable::IsBefore(const Block& block, const Block& follower, bool if_spent,
                          Visits& visits) const {
  if (follower.name.space_id != block.name.space_id) {
    return false;
  }
  for (const Block* before = ParentOf(follower);
       before != nullptr && before->first_position >= block.first_position;
       before = ParentOf(*before)) {
    if (before == &block) {
      return true;
    }
    if (!visits.Take()) {
      return if_spent;
    }
  }
  return false;
}

// --- By age --------------------------------------------------------------------------------------

uint64_t BlockTable::EvictOldest(Eviction& eviction, Visits& visits) {
  eviction.is_past_leaves = false;
  if (!PropagateOrphans(visits)) {
    return 0;
  }
  Block* block = OldestUnheld(eviction, visits);
  return block == nullptr ? 0 : EvictFrom(block, eviction.tier, eviction.reason);
}

Block* BlockTable::OldestUnheld(Eviction& eviction, Visits& visits) {
  InTier& in = At(eviction.tier);
  if (!in.traits.is_leaf_first) {
    return nullptr;
  }
  const size_t order_count = IsOrphaned(eviction.newcomer) ? kOrphaned + 1 : kWhole + 1;
  Block* leaf = nullptr;
  for (size_t i = 0; leaf == nullptr && i < order_count; ++i) {
    if (Order& order = in.orders[i]; order.held < order.recency->count()) {
      leaf = OldestLeaf(order, eviction.tier, visits);
      if (leaf == nullptr) {
        return nullptr;
      }
    }
  }
  // What the lasting tier has too is not lost, and cuts no chain here.
  const bool is_dirty = leaf == nullptr || HasDirty(*leaf);
  if (is_dirty && eviction.tier == TierId::kHost && !IsOfIndex(eviction.reason)) {
    Block* clean = OldestClean(visits);
    if (clean != nullptr || (leaf == nullptr && visits.is_spent())) {
      return clean;
    }
  }
  if (leaf != nullptr) {
    return leaf;
  }
  if (in.held_blocks == in.figures.block_count) {
    return nullptr;
  }
  // What is left and not held has children that are.
  eviction.is_past_leaves = true;
  // Whole chains first: of those that are broken already the held leaves are mostly all there is.
  for (size_t i = order_count; i-- > 0;) {
    Block* block = PastHeldLeaves(in.orders[i], eviction, visits);
    if (block != nullptr || visits.is_spent()) {
      return block;
    }
  }
  return nullptr;
}

Block* BlockTable::OldestLeaf(Order& order, TierId tier, Visits& visits) {
  for (;;) {  // ends: `visits`, or all leaves were looked at
    Block* leaf = order.recency->Oldest(visits);
    if (leaf == nullptr || leaf->in(IndexOf(tier)).held_count == 0) {
      return leaf;
    }
    leaf->last_use = ++uses_;  // a held block counts as just used
    if (!visits.Take()) {
      return nullptr;
    }
  }
}

Block* BlockTable::PastHeldLeaves(Order& order, const Eviction& eviction, Visits& visits) {
  Block* last_resort = nullptr;
  for (;;) {  // ends: `visits`, or all leaves were looked at
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
      last_resort = ancestor;  // the end of what follows the newcomer
    }
    // One whose held ancestors take more than a hold is left alone.
    if (visits.is_spent() && !is_fresh) {
      return last_resort;
    }
    leaf->last_use = ++uses_;
    if (!visits.Take()) {
      return last_resort;
    }
  }
}

Block* BlockTable::UnheldAncestor(Block& block, const Eviction& eviction, bool* is_being_put,
                                  Visits& visits) {
  const size_t tier = IndexOf(eviction.tier);
  const Block* newcomer = eviction.newcomer == nullptr ? nullptr : FindKnown(*eviction.newcomer);
  for (Block* last = &block; last->parent != kNoSlot;) {
    *is_being_put |= last->child_put_count() > 0;
    Block* ancestor = ParentOf(*last);
    if (ancestor->in(tier).copy_count > 0 && ancestor->in(tier).held_count == 0) {
      // A chain that is being put is cut for a block before it only.
      const bool may_go =
          *is_being_put
              ? newcomer != nullptr && IsBefore(*newcomer, *ancestor, /*if_spent=*/false, visits)
              : newcomer == nullptr || !IsBefore(*ancestor, *newcomer, /*if_spent=*/true, visits);
      return may_go ? ancestor : nullptr;
    }
    if (!visits.Take()) {
      return nullptr;
    }
    last = ancestor;
  }
  return nullptr;
}

bool BlockTable::EvictAnywhere(EvictionReason reason, const BlockName& newcomer, Visits& visits) {
  // The slowest tier first: what is there only was not wanted for longest.
  for (auto tier = kReadOrder.rbegin(); tier != kReadOrder.rend(); ++tier) {
    Eviction eviction = {.tier = *tier, .reason = reason, .newcomer = &newcomer, .since = uses_};
    Block* block = OldestUnheld(eviction, visits);
    if (block == nullptr) {
      continue;
    }
    // Elsewhere first, so that what is held there keeps the block.
    const BlockName name = block->name;
    for (const TierId other : kReadOrder) {
      block = Find(name);
      if (block != nullptr && HasCopiesIn(*block, other) &&
          block->in(IndexOf(other)).held_count == 0) {
        EvictFrom(block, other, reason);
      }
    }
    return true;
  }
  return false;
}

// --- By place ------------------------------------------------------------------------------------

bool BlockTable::EvictWindow(Arena& arena, uint64_t bytes, const BlockName* newcomer,
                             uint64_t* bytes_passed) {
  Visits visits;
  if (!PropagateOrphans(visits)) {
    return false;
  }
  const bool is_orphaned = IsOrphaned(newcomer);
  Block* block = newcomer == nullptr ? nullptr : FindKnown(*newcomer);
  ++search_;
  uint64_t unknown_below = 0;  // where a block of the space may be before the newcomer
  for (Block* before = block == nullptr ? nullptr : ParentOf(*block); before != nullptr;
       before = ParentOf(*before)) {
    if (!visits.Take()) {
      unknown_below = before->end_position();
      break;
    }
    if (before->is_awake()) {  // others have nothing there
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
    // The block goes whole, and its copies are about alike.
    const uint64_t block_bytes = copy.facts.image_bytes * in.copy_count;
    // Children without their parent are of no use; nor is a block without its own.
    return owned.is_orphaned ? block_bytes / 16
                             : block_bytes * (1 + std::min<uint64_t>(in.child_count, 16));
  };
  const std::vector<void*> owners =
      arena.CheapestWindow(bytes, limits::kVisitsPerHoldMax, cost, bytes_passed);
  // A block may stand in the window with several images; it goes with the first.
  std::vector<Block*> blocks;
  for (void* owner : owners) {
    blocks.push_back(static_cast<Copy*>(owner)->image->block);
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  for (Block* evicted : blocks) {
    EvictFrom(evicted, TierId::kHost, EvictionReason::kWindow);
  }
  return !blocks.empty();
}

Copy* BlockTable::FindCopy(TierId tier, const ImageFacts& image, uint64_t offset) {
  Block* block = Find({image.space_id, image.key});
  if (block == nullptr) {
    return nullptr;
  }
  for (const ImageRef& ref : Wake(block)) {
    Copy* copy = ref.image->copies[IndexOf(tier)];
    if (copy != nullptr && copy->extent.offset() == offset) {
      return copy;
    }
  }
  return nullptr;
}

bool BlockTable::EvictCopy(TierId tier, const ImageFacts& image, uint64_t offset,
                           EvictionReason reason) {
  Copy* copy = FindCopy(tier, image, offset);
  if (copy == nullptr) {
    return true;
  }
  if (copy->is_held) {
    return false;
  }
  Image* owner = copy->image;
  const Block* block = owner->block;
  InTier& in = At(tier);
  // What was used since goes back there, so that the next process has it.
  if (in.traits.is_lasting && block->last_use <= copy->linked_at) {
    SetLetGo(owner, LetGo::kDropped);
  }
  in.evicted_bytes[static_cast<size_t>(reason)] += UnlinkCopy(copy);
  if (block->in(IndexOf(tier)).copy_count == 0) {
    CountEvicted(*block, tier, reason);
  }
  UnlinkIfLost(owner);
  return true;
}

Evictor::Moved BlockTable::MoveCopy(TierId tier, const ImageFacts& image, uint64_t offset,
                                    TierExtent& to) {
  Copy* copy = FindCopy(tier, image, offset);
  if (copy == nullptr) {
    return Evictor::Moved::kGone;
  }
  if (copy->pins > 0) {
    return Evictor::Moved::kBusy;
  }
  CAIRN_CHECK(to.size_bytes() == copy->extent.size_bytes() &&
              to.rounded_bytes() == copy->extent.rounded_bytes());
  copy->extent = std::move(to);
  return Evictor::Moved::kMoved;
}

void BlockTable::LoseCopy(TierId tier, const ImageFacts& image, uint64_t offset) {
  if (Copy* copy = FindCopy(tier, image, offset); copy != nullptr) {
    Lose(copy);
  }
}

}  // namespace cairn
