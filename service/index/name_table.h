// SPDX-License-Identifier: Apache-2.0
#pragma once
// A hash table of blocks by name. The blocks of a bucket form a list through next_in_bucket. The
// table has as many buckets as the largest number of blocks that ever existed at once. A bucket
// takes 4 bytes.
//
// It grows by linear hashing: if there is no spare bucket, adding a block splits one bucket. So an
// insertion rehashes only about two blocks, whatever the size. A removal leaves no tombstone.
//
// Thread-safety: Thread-compatible (the index's lock).
// Cost:          a look-up accesses a bucket and 1.5 blocks on average.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/hash/hash.h"
#include "service/index/block.h"
#include "service/index/slab.h"

namespace cairn {

using BlockSlab = Slab<Block, &Block::next_in_bucket>;

class NameTable {
 public:
  // Borrows the slab that has the blocks.
  explicit NameTable(BlockSlab& blocks) : blocks_(blocks) { AddChunk(); }

  uint64_t count() const { return count_; }
  uint64_t bytes() const { return chunks_.size() * sizeof(Chunk); }

  // Returns null if there is none.
  Block* Find(const BlockName& name) const {
    uint32_t slot = BucketOf(name);
    while (slot != kNoSlot) {
      Block* block = blocks_.At(slot);
      if (block->name == name) {
        return block;
      }
      slot = block->next_in_bucket;
    }
    return nullptr;
  }
  // REQUIRES: the table has no block with that name.
  void Add(Block* block) {
    if (count_ == bucket_count_) {
      Split();
    }
    Link(block);
    ++count_;
  }
  // REQUIRES: the block is in the table.
  void Remove(Block* block) {
    uint32_t* link = &BucketOf(block->name);
    while (*link != block->slot) {
      link = &blocks_.At(*link)->next_in_bucket;
    }
    *link = block->next_in_bucket;
    --count_;
  }

 private:
  using Chunk = std::array<uint32_t, 4096>;

  uint32_t& At(uint64_t bucket) const {
    return (*chunks_[bucket / std::tuple_size_v<Chunk>])[bucket % std::tuple_size_v<Chunk>];
  }
  uint32_t& BucketOf(const BlockName& name) const {
    const uint64_t hash = absl::Hash<BlockName>{}(name);
    const uint64_t bucket = hash & (2 * round_ - 1);
    return At(bucket < bucket_count_ ? bucket : bucket - round_);
  }
  void Link(Block* block) {
    uint32_t& bucket = BucketOf(block->name);
    block->next_in_bucket = bucket;
    bucket = block->slot;
  }
  void AddChunk() {
    chunks_.push_back(std::make_unique<Chunk>());
    chunks_.back()->fill(kNoSlot);
  }
  // Splits the next bucket. A round splits the buckets in order. At its end there are twice as
  // many, and the next round begins.
  void Split() {
    uint32_t& from = At(bucket_count_ - round_);
    if (bucket_count_ == chunks_.size() * std::tuple_size_v<Chunk>) {
      AddChunk();
    }
    if (++bucket_count_ == 2 * round_) {
      round_ *= 2;
    }
    uint32_t slot = from;
    from = kNoSlot;
    while (slot != kNoSlot) {
      Block* block = blocks_.At(slot);
      slot = block->next_in_bucket;
      Link(block);
    }
  }

  BlockSlab& blocks_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  uint64_t round_ = 1;         // buckets at the beginning of this round: a power of two
  uint64_t bucket_count_ = 1;  // from round_ to 2 * round_ - 1
  uint64_t count_ = 0;
};

}  // namespace cairn
