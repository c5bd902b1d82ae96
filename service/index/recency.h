// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks of one tier in the order of their last use: exact least-recently-used order with O(1)
// per touch. A binary heap has each block under the use count at which it was filed. A touch only
// increases block.last_use; a search for the oldest first re-files the blocks that were touched
// since.
//
// Thread-safety: Thread-compatible (the index's lock).
// Cost:          Add, Remove, Oldest O(log n), amortised over touches; no allocation within
//                `blocks_max`.

#include <cstdint>
#include <vector>

#include "service/index/block.h"

namespace cairn {

class Recency {
 public:
  // `tier` is by IndexOf(); it uses a block's queue_index of that tier.
  Recency(size_t tier, uint64_t blocks_max) : tier_(tier) { entries_.reserve(blocks_max); }

  size_t count() const { return entries_.size(); }
  // REQUIRES: not in it.
  void Add(Block* block);
  // Does nothing if it is not in it.
  void Remove(Block* block);
  // Returns the least recently used block without removing it. Null: none, or `visits` are spent on
  // blocks that were touched since they were filed.
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
