// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "service/index/block_table.h"
#include "service/limits.h"

namespace cairn {

uint64_t BlockTable::EvictOldest(EvictionReason reason, uint64_t since, Visits& visits) {
  Block* block = OldestUnpinned(since, visits);
  if (block == nullptr) {
    return 0;
  }
  const uint64_t freed = UnlinkBlock(block);
  CAIRN_CHECK(freed > 0);
  ++evicted_blocks_[static_cast<size_t>(reason)];
  evicted_bytes_[static_cast<size_t>(reason)] += freed;
  return freed;
}

Block* BlockTable::OldestUnpinned(uint64_t since, Visits& visits) {
  if (pinned_blocks_ == figures_.block_count) {
    return nullptr;
  }
  const bool has_leaf = !is_every_leaf_pinned();
  for (;;) {  // ends: `visits`, or all leaves were looked at
    Block* leaf = recency_.Oldest(visits);
    if (leaf == nullptr || leaf->pinned_images == 0) {
      return leaf;
    }
    if (!has_leaf) {
      // What is left without pins has children that are pinned.
      if (leaf->last_use > since) {
        return nullptr;
      }
      const bool is_fresh = visits.count() == 0;
      Block* ancestor = UnpinnedAncestor(*leaf, visits);
      if (ancestor != nullptr) {
        return ancestor;
      }
      // One whose pinned ancestors take more than a hold is left alone.
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

Block* BlockTable::UnpinnedAncestor(const Block& block, Visits& visits) {
  Block* ancestor = Find({block.name.space_id, block.parent});
  while (ancestor != nullptr && ancestor->pinned_images > 0) {
    if (!visits.Take()) {
      return nullptr;
    }
    ancestor = Find({block.name.space_id, ancestor->parent});
  }
  return ancestor;
}

bool BlockTable::EvictWindow(Arena& arena, uint64_t bytes, uint64_t* bytes_passed) {
  const auto cost = [](void* owner) -> uint64_t {
    const Image& image = *static_cast<const Image*>(owner);
    const Block& block = *image.block;
    if (block.pinned_images > 0) {
      return UINT64_MAX;
    }
    // The block goes whole, and its images are about alike. Children without their parent are of no
    // use.
    return image.facts.image_bytes * block.images.size() *
           (1 + std::min<uint64_t>(block.child_count, 16));
  };
  const std::vector<void*> owners =
      arena.CheapestWindow(bytes, limits::kVisitsPerHoldMax, cost, bytes_passed);
  constexpr size_t kReason = static_cast<size_t>(EvictionReason::kWindow);
  // A block may stand in the window with several images; it is unlinked with the first.
  std::vector<Block*> blocks;
  for (void* owner : owners) {
    blocks.push_back(static_cast<Image*>(owner)->block);
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  for (Block* block : blocks) {
    evicted_bytes_[kReason] += UnlinkBlock(block);
    ++evicted_blocks_[kReason];
  }
  return !blocks.empty();
}

}  // namespace cairn
