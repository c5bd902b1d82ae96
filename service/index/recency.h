// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks of one tier in the order of their last use: exact least-recently-used at O(1) a touch.
// A binary heap holds each block under the use it had when it was put there; a touch only raises
// block.last_use, and whoever asks for the oldest first re-files those that were touched since.
//
// Thread-safety: Thread-compatible (the index's lock).
// Cost:          Add, Remove, Oldest O(log n) amortised over touches; no heap allocation within
//                `blocks_max`.

#include <cstdint>
#include <vector>

#include "service/index/block.h"
#include "service/index/visits.h"

namespace cairn {

class Recency {
 public:
  // `tier`: by IndexOf(), whose queue_index of a block it uses.
  Recency(size_t tier, uint64_t blocks_max) : tier_(tier) { entries_.reserve(blocks_max); }

  size_t count() const { return entries_.size(); }
  // REQUIRES: not there.
  void Add(Block* block);
  // Nothing if not there.
  void Remove(Block* block);
  // The least recently used; it stays. Null: there is none, or `visits` are spent on blocks that
  // were touched since they were filed.
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
