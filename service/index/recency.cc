// SPDX-License-Identifier: Apache-2.0
#include "service/index/recency.h"

#include "base/check.h"

namespace cairn {

void Recency::Place(size_t index, const Entry& entry) {
  entries_[index] = entry;
  entry.block->awake->in[tier_].queue_index = static_cast<uint32_t>(index);
}

void Recency::SiftUp(size_t index) {
  const Entry entry = entries_[index];
  while (index > 0 && entry.use < entries_[(index - 1) / 2].use) {
    Place(index, entries_[(index - 1) / 2]);
    index = (index - 1) / 2;
  }
  Place(index, entry);
}

void Recency::SiftDown(size_t index) {
  const Entry entry = entries_[index];
  for (;;) {
    size_t child = 2 * index + 1;
    if (child >= entries_.size()) {
      break;
    }
    if (child + 1 < entries_.size() && entries_[child + 1].use < entries_[child].use) {
      ++child;
    }
    if (entry.use <= entries_[child].use) {
      break;
    }
    Place(index, entries_[child]);
    index = child;
  }
  Place(index, entry);
}

void Recency::Add(Block* block) {
  CAIRN_CHECK(block->awake->in[tier_].queue_index == BlockInTier::kNotQueued);
  entries_.push_back({block->last_use, block});
  SiftUp(entries_.size() - 1);
}

void Recency::Remove(Block* block) {
  const uint32_t index = block->awake->in[tier_].queue_index;
  if (index == BlockInTier::kNotQueued) {
    return;
  }
  block->awake->in[tier_].queue_index = BlockInTier::kNotQueued;
  const Entry last = entries_.back();
  entries_.pop_back();
  if (index < entries_.size()) {
    Place(index, last);
    SiftUp(index);
    SiftDown(last.block->awake->in[tier_].queue_index);
  }
}

Block* Recency::Oldest(Visits& visits) {
  while (!entries_.empty()) {
    Entry& top = entries_[0];
    if (top.use == top.block->last_use) {
      return top.block;
    }
    if (!visits.Take()) {
      return nullptr;
    }
    // The block was touched since it was filed. The loop ends, because each block is filed again at
    // most once per touch.
    top.use = top.block->last_use;
    SiftDown(0);
  }
  return nullptr;
}

}  // namespace cairn
