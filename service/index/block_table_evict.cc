// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "service/index/block_table.h"

namespace cairn {

uint64_t BlockTable::EvictOldest(EvictionReason reason) {
  Block* block = OldestUnpinned();
  if (block == nullptr) {
    return 0;
  }
  const uint64_t freed = UnlinkBlock(block);
  CAIRN_CHECK(freed > 0);
  ++evicted_blocks_[static_cast<size_t>(reason)];
  evicted_bytes_[static_cast<size_t>(reason)] += freed;
  return freed;
}

Block* BlockTable::OldestUnpinned() {
  while (pinned_queued_ < recency_.count()) {
    Block* block = recency_.Oldest();
    if (block->pinned_images == 0) {
      return block;
    }
    // In use is used: behind all others. Ends, since one of those is not pinned.
    block->last_use = ++uses_;
  }
  if (pinned_blocks_ == figures_.block_count) {
    return nullptr;
  }
  // What is left without pins has children that are pinned. Rare, so looked for one by one.
  Block* oldest = nullptr;
  for (Block* block : by_name_) {
    if (block->pinned_images == 0 && (oldest == nullptr || block->last_use < oldest->last_use)) {
      oldest = block;
    }
  }
  return oldest;
}

bool BlockTable::EvictWindow(const Arena& arena, uint64_t bytes) {
  const std::vector<void*> owners = arena.CheapestWindow(bytes, [](void* owner) -> uint64_t {
    const Block& block = *static_cast<const Image*>(owner)->block;
    if (block.pinned_images > 0) {
      return UINT64_MAX;
    }
    uint64_t cost = 0;
    for (const ImageRef& ref : block.images) {
      cost += ref.image->facts.image_bytes;
    }
    // Children without their parent are of no use.
    return cost * (1 + std::min<uint64_t>(block.child_count, 16));
  });
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
