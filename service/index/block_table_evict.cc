// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "service/index/block_table.h"
#include "service/limits.h"

namespace cairn {

uint64_t BlockTable::EvictFrom(Block* block, TierId tier, EvictionReason reason) {
  uint64_t freed = 0;
  ImageList images;
  for (const ImageRef& ref : block->images) {
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
      Settle(image);
    }
  }
  ++At(tier).evicted_blocks[static_cast<size_t>(reason)];
  At(tier).evicted_bytes[static_cast<size_t>(reason)] += freed;
  return freed;
}

uint64_t BlockTable::EvictOldest(TierId tier, EvictionReason reason, uint64_t since,
                                 Visits& visits) {
  Block* block = OldestUnheld(tier, since, visits);
  return block == nullptr ? 0 : EvictFrom(block, tier, reason);
}

Block* BlockTable::OldestUnheld(TierId tier, uint64_t since, Visits& visits) {
  const InTier& order = At(tier);
  if (order.recency == nullptr || order.held_blocks == order.figures.block_count) {
    return nullptr;
  }
  const bool has_leaf = !IsEveryLeafHeld(tier);
  for (;;) {  // ends: `visits`, or all leaves were looked at
    Block* leaf = order.recency->Oldest(visits);
    if (leaf == nullptr || leaf->in[IndexOf(tier)].held_count == 0) {
      return leaf;
    }
    if (!has_leaf) {
      // What is left and not held has children that are.
      if (leaf->last_use > since) {
        return nullptr;
      }
      const bool is_fresh = visits.count() == 0;
      Block* ancestor = UnheldAncestor(*leaf, tier, visits);
      if (ancestor != nullptr) {
        return ancestor;
      }
      // One whose held ancestors take more than a hold is left alone.
      if (visits.is_spent() && !is_fresh) {
        return nullptr;
      }
    }
    // In use is used: behind all others.
    leaf->last_use = ++uses_;
    if (!visits.Take()) {
      return nullptr;
    }
  }
}

Block* BlockTable::UnheldAncestor(const Block& block, TierId tier, Visits& visits) {
  Block* ancestor = Find({block.name.space_id, block.parent});
  while (ancestor != nullptr && (ancestor->in[IndexOf(tier)].copy_count == 0 ||
                                 ancestor->in[IndexOf(tier)].held_count > 0)) {
    if (!visits.Take()) {
      return nullptr;
    }
    ancestor = Find({block.name.space_id, ancestor->parent});
  }
  return ancestor;
}

bool BlockTable::EvictAnywhere(EvictionReason reason, Visits& visits) {
  // The slowest tier first: what is there only was not wanted for longest.
  for (auto tier = kReadOrder.rbegin(); tier != kReadOrder.rend(); ++tier) {
    Block* block = OldestUnheld(*tier, uses_, visits);
    if (block == nullptr) {
      continue;
    }
    // Elsewhere first, so that what is held there keeps the block.
    const BlockName name = block->name;
    for (const TierId other : kReadOrder) {
      block = Find(name);
      if (block != nullptr && block->in[IndexOf(other)].copy_count > 0 &&
          block->in[IndexOf(other)].held_count == 0) {
        EvictFrom(block, other, reason);
      }
    }
    return true;
  }
  return false;
}

bool BlockTable::EvictWindow(Arena& arena, uint64_t bytes, uint64_t* bytes_passed) {
  const auto cost = [](void* owner) -> uint64_t {
    const Copy& copy = *static_cast<const Copy*>(owner);
    const BlockInTier& in = copy.image->block->in[IndexOf(TierId::kHost)];
    if (in.held_count > 0) {
      return UINT64_MAX;
    }
    // The block goes whole, and its copies are about alike. Children without their parent are of no
    // use.
    return copy.facts.image_bytes * in.copy_count * (1 + std::min<uint64_t>(in.child_count, 16));
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
  for (Block* block : blocks) {
    EvictFrom(block, TierId::kHost, EvictionReason::kWindow);
  }
  return !blocks.empty();
}

Copy* BlockTable::FindCopy(TierId tier, const ImageFacts& image, uint64_t offset) const {
  const Block* block = Find({image.space_id, image.key});
  if (block == nullptr) {
    return nullptr;
  }
  for (const ImageRef& ref : block->images) {
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
  owner->is_let_go = in.traits.is_lasting && block->last_use <= copy->linked_at;
  in.evicted_bytes[static_cast<size_t>(reason)] += UnlinkCopy(copy);
  in.evicted_blocks[static_cast<size_t>(reason)] += block->in[IndexOf(tier)].copy_count == 0;
  Settle(owner);
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
