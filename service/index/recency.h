// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks of one tier in exact least-recently-used order, with O(1) per touch. A binary heap
// orders the blocks by the use counts that they had when they were put into the heap. A touch only
// increases block.last_use. Before a search returns the oldest block, it moves the blocks that were
// touched meanwhile to their new places in the heap.
//
// Thread-safety: Thread-compatible (the index's lock).
// Cost:         Add, Remove and Oldest O(log n), amortised over touches. Allocates nothing up to
//               `blocks_max` blocks.

#include <cstdint>
#include <vector>

#include "service/index/block.h"

namespace cairn {

class Recency {
 public:
  // `tier` is the IndexOf() of the tier. Uses the blocks' queue_index in that tier.
  Recency(size_t tier, uint64_t blocks_max) : tier_(tier) { entries_.reserve(blocks_max); }

  size_t count() const { return entries_.size(); }
  // The number of blocks up to which it allocates nothing.
  size_t capacity() const { return entries_.capacity(); }
  void Reserve(size_t blocks_max) { entries_.reserve(blocks_max); }
  // REQUIRES: the block is not in it.
  void Add(Block* block);
  // Does nothing if the block is not in it.
  void Remove(Block* block);
  // Returns the least recently used block without removing it. Returns null if there is none, or if
  // `visits` were spent on blocks that were touched and had to be moved.
  Block* Oldest(Visits& visits);

 private:
  struct Entry {
    uint64_t use;
    Block* block;
  };
  void Place(size_t index, const Entry& entry);
  void SiftUp(size_t index);
  void SiftDown(size_t index);

  const size_t tier_;
  std::vector<Entry> entries_;
};

}  // namespace cairn
