// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the store is to do, in a hundred lines: a set of tiles a block, and Match by its definition.
// Knows no eviction, no limits, no bytes.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "service/index/match.h"

namespace cairn {

class StoreModel {
 public:
  explicit StoreModel(uint32_t tokens_per_block) : tokens_per_block_(tokens_per_block) {}

  // True: stored. False: all of it was there.
  bool Put(uint64_t block, uint16_t group, const codecs::Slice& slice) {
    bool is_new = false;
    ForEachTile(group, slice,
                [&](const Tile& tile) { is_new |= blocks_[block].insert(tile).second; });
    return is_new;
  }
  bool Delete(uint64_t block) { return blocks_.erase(block) > 0; }
  uint64_t Invalidate() {
    const uint64_t count = blocks_.size();
    blocks_.clear();
    return count;
  }
  uint64_t block_count() const { return blocks_.size(); }

  bool Has(uint64_t block, uint16_t group, const codecs::Slice& slice) const {
    const auto found = blocks_.find(block);
    bool has_all = found != blocks_.end();
    if (has_all) {
      ForEachTile(group, slice,
                  [&](const Tile& tile) { has_all &= found->second.count(tile) > 0; });
    }
    return has_all;
  }
  bool IsComplete(uint64_t block, const std::vector<WantedGroup>& wanted) const {
    return std::all_of(wanted.begin(), wanted.end(),
                       [&](const WantedGroup& w) { return Has(block, w.group, w.slice); });
  }

  size_t Asked(const std::vector<uint64_t>& blocks, uint32_t token_limit) const {
    return token_limit == 0 ? blocks.size()
                            : std::min<size_t>(blocks.size(), token_limit / tokens_per_block_);
  }
  // The largest n for which each group has what it needs of the first n blocks.
  size_t Match(const std::vector<uint64_t>& blocks, const std::vector<WantedGroup>& wanted,
               uint32_t token_limit) const {
    for (size_t n = Asked(blocks, token_limit); n > 0; --n) {
      if (std::all_of(wanted.begin(), wanted.end(),
                      [&](const WantedGroup& w) { return Serves(blocks, w, n); })) {
        return n;
      }
    }
    return 0;
  }

 private:
  using Tile = std::tuple<uint16_t, uint32_t, uint32_t>;

  template <typename Action>
  static void ForEachTile(uint16_t group, const codecs::Slice& slice, Action action) {
    for (uint32_t layer = 0; layer < slice.layer_count; ++layer) {
      for (uint32_t head = 0; head < slice.head_count; ++head) {
        action(Tile{group, slice.layer_first + layer, slice.head_first + head});
      }
    }
  }
  bool Serves(const std::vector<uint64_t>& blocks, const WantedGroup& wanted, size_t n) const {
    size_t first = 0;
    if (wanted.rule == WantedGroup::Rule::kLast) {
      first = n - 1;
    } else if (wanted.rule == WantedGroup::Rule::kWindow && n > wanted.window_blocks) {
      first = n - wanted.window_blocks;
    }
    for (size_t i = first; i < n; ++i) {
      if (!Has(blocks[i], wanted.group, wanted.slice)) {
        return false;
      }
    }
    return true;
  }

  const uint32_t tokens_per_block_;
  std::map<uint64_t, std::set<Tile>> blocks_;
};

}  // namespace cairn
