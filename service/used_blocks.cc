// SPDX-License-Identifier: Apache-2.0
#include "service/used_blocks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "proto/convert.h"

namespace cairn {
namespace {

std::vector<UsedBlock> WalkAll(const BlockIndex& index, uint32_t since_unix_s, size_t count_max) {
  std::vector<UsedBlock> used;
  const auto keep_last = [&used, count_max] {
    if (used.size() <= count_max) return;
    std::ranges::nth_element(used, used.begin() + static_cast<ptrdiff_t>(count_max),
                             std::greater<>(), &UsedBlock::last_use);
    used.resize(count_max);
  };
  uint64_t cursor = 0;
  for (bool has_more = true; has_more;) {  // ends with the slots of the index
    has_more = index.WalkUsed(since_unix_s, &cursor, &used);
    if (used.size() >= 2 * count_max) keep_last();
  }
  keep_last();
  return used;
}

// A slice in the order of GroupSlice's fields.
using SliceNumbers = std::array<uint32_t, 5>;

std::vector<SliceNumbers> SlicesOf(const UsedBlock& block) {
  std::vector<SliceNumbers> slices;
  for (const WantedGroup& image : block.images) {
    slices.push_back({image.group, image.slice.layer_first, image.slice.layer_count,
                      image.slice.head_first, image.slice.head_count});
  }
  std::ranges::sort(slices);
  return slices;
}

std::vector<GroupSlice> ToSlices(const std::vector<SliceNumbers>& numbers) {
  std::vector<GroupSlice> slices;
  for (const auto& [group, layer_first, layer_count, head_first, head_count] : numbers) {
    slices.push_back({.group = group,
                      .layer_first = layer_first,
                      .layer_count = layer_count,
                      .head_first = head_first,
                      .head_count = head_count});
  }
  return slices;
}

}  // namespace

OfferableBlocks CollectUsed(const BlockIndex& index, Spaces& spaces, uint32_t since_unix_s,
                            size_t count_max) {
  OfferableBlocks result;
  absl::flat_hash_map<uint64_t, uint32_t> space_indices;  // UINT32_MAX: the space is gone
  std::map<std::vector<SliceNumbers>, uint32_t> slice_indices;
  absl::flat_hash_set<BlockName> seen;  // a block that moved meanwhile is found twice
  for (const UsedBlock& block : WalkAll(index, since_unix_s, count_max)) {
    if (!seen.insert(block.name).second) continue;
    const auto [space_index, is_new] = space_indices.try_emplace(block.name.space_id, UINT32_MAX);
    if (is_new) {
      const absl::StatusOr<SpaceRef> space = spaces.Find(block.name.space_id);
      if (space.ok()) {
        space_index->second = static_cast<uint32_t>(result.spaces.size());
        result.spaces.push_back({(*space)->identity(), proto::ToRecipeName((*space)->recipe())});
      }
    }
    if (space_index->second == UINT32_MAX) continue;
    std::vector<SliceNumbers> slices = SlicesOf(block);
    const auto [list, is_other] =
        slice_indices.try_emplace(std::move(slices), static_cast<uint32_t>(result.slices.size()));
    if (is_other) result.slices.push_back(ToSlices(list->first));
    result.blocks.push_back({.space = space_index->second,
                             .slices = list->second,
                             .key = block.name.key,
                             .parent = block.parent,
                             .first_position = block.first_position,
                             .last_use = block.last_use,
                             .image_bytes = block.image_bytes});
  }
  return result;
}

}  // namespace cairn
