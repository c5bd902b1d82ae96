// SPDX-License-Identifier: Apache-2.0
// Blocks and chains.
#include "service/index/block_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "codecs/types/shape.h"
#include "service/index/cover.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Far below what could overflow when a block's tokens are added.
constexpr uint64_t kFirstPositionMax = uint64_t{1} << 48;

bool IsNone(const proto::BlockKey& key) { return key == proto::BlockKey{}; }

BlockName ParentOf(const Block& block) { return {block.name.space_id, block.parent}; }

}  // namespace

BlockTable::BlockTable(std::span<CopyTier* const> tiers, uint64_t blocks_max, uint64_t images_max)
    : blocks_max_(blocks_max), images_max_(images_max) {
  CAIRN_CHECK(blocks_max > 0 && images_max > 0 &&
              codecs::AllRecipes().size() + std::size(kRecipeFamilies) <=
                  figures_by_recipe_.size());
  by_name_.reserve(blocks_max);
  orphans_.reserve(blocks_max);
  for (const CopyTier* tier : tiers) {
    InTier& in = At(tier->id());
    in.exists = true;
    in.traits = tier->traits();
    if (tier->id() != TierId::kHost) {
      in.lease_bytes_max = tier->capacity_bytes() / 100 * limits::kPinnedPercentMax;
    }
    if (in.traits.is_lasting) {
      CAIRN_CHECK(!lasting_.has_value(), "one lasting tier");
      lasting_ = tier->id();
      lasting_image_bytes_max_ = tier->image_bytes_max();
    }
    if (in.traits.is_leaf_first) {
      in.recency = std::make_unique<Recency>(IndexOf(tier->id()), blocks_max);
    }
  }
}

Block* BlockTable::Find(const BlockName& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : *found;
}

// --- Chains --------------------------------------------------------------------------------------

absl::Status BlockTable::CheckPlaceInChain(const BlockClaim& claim) const {
  if (claim.first_position > kFirstPositionMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_position is ", claim.first_position, ": at most ", kFirstPositionMax));
  }
  if (!IsNone(claim.parent)) {
    if (claim.parent == claim.name.key) {
      return absl::InvalidArgumentError("parent is the block itself");
    }
    if (claim.first_position == 0) {
      return absl::InvalidArgumentError("first_position is 0: such a block has no parent");
    }
    const BlockName parent_name = {claim.name.space_id, claim.parent};
    const Block* parent = Find(parent_name);
    if (parent != nullptr && parent->first_position + parent->tokens != claim.first_position) {
      return absl::InvalidArgumentError(absl::StrCat("first_position is ", claim.first_position,
                                                     ": the parent ends at ",
                                                     parent->first_position + parent->tokens));
    }
    if (const auto siblings = orphans_.find(parent_name);
        siblings != orphans_.end() && siblings->second.first_position != claim.first_position) {
      return absl::InvalidArgumentError(absl::StrCat("first_position is ", claim.first_position,
                                                     ": other children of the parent start at ",
                                                     siblings->second.first_position));
    }
  }
  if (const auto children = orphans_.find(claim.name);
      children != orphans_.end() &&
      children->second.first_position != claim.first_position + claim.tokens) {
    return absl::InvalidArgumentError(absl::StrCat("first_position is ", claim.first_position,
                                                   ": children of the block start at ",
                                                   children->second.first_position));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<uint64_t>> BlockTable::Check(const BlockClaim& claim) const {
  const Block* block = Find(claim.name);
  if (block == nullptr) {
    CAIRN_RETURN_IF_ERROR(CheckPlaceInChain(claim));
    return std::nullopt;
  }
  if (block->first_position != claim.first_position) {
    return absl::InvalidArgumentError(absl::StrCat("first_position is ", claim.first_position,
                                                   ": the block is there with ",
                                                   block->first_position));
  }
  if (!IsNone(claim.parent) && !IsNone(block->parent) && claim.parent != block->parent) {
    return absl::InvalidArgumentError("parent is not the one that the block is there with");
  }
  ImageList images;
  if (FindCover(*block, claim.group, claim.slice, &images)) {
    uint64_t bytes = 0;
    for (const Image* image : images) {
      bytes += image->best().facts.image_bytes;
    }
    return bytes;
  }
  if (block->images.size() >= codecs::kImagesPerBlockMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the block has its ", codecs::kImagesPerBlockMax, " images"));
  }
  return std::nullopt;
}

void BlockTable::AddChild(const BlockName& parent, uint64_t first_position) {
  if (Block* block = Find(parent); block != nullptr) {
    ++block->child_count;
    return;
  }
  Orphans& orphans = orphans_[parent];
  ++orphans.count;
  orphans.first_position = first_position;
}

void BlockTable::RemoveChild(const BlockName& parent) {
  if (Block* block = Find(parent); block != nullptr) {
    CAIRN_CHECK(block->child_count > 0);
    --block->child_count;
    return;
  }
  const auto found = orphans_.find(parent);
  CAIRN_CHECK(found != orphans_.end() && found->second.count > 0);
  if (--found->second.count == 0) {
    orphans_.erase(found);
  }
}

void BlockTable::AddChildIn(const Block& child, TierId tier) {
  if (IsNone(child.parent)) {
    return;
  }
  if (Block* parent = Find(ParentOf(child)); parent != nullptr) {
    ++parent->in[IndexOf(tier)].child_count;
    Requeue(parent, tier);
  } else {
    ++orphans_[ParentOf(child)].count_in[IndexOf(tier)];
  }
}

void BlockTable::RemoveChildIn(const Block& child, TierId tier) {
  if (IsNone(child.parent)) {
    return;
  }
  if (Block* parent = Find(ParentOf(child)); parent != nullptr) {
    CAIRN_CHECK(parent->in[IndexOf(tier)].child_count > 0);
    --parent->in[IndexOf(tier)].child_count;
    Requeue(parent, tier);
  } else {
    --orphans_[ParentOf(child)].count_in[IndexOf(tier)];
  }
}

void BlockTable::Requeue(Block* block, TierId tier) {
  InTier& order = At(tier);
  const BlockInTier& in = block->in[IndexOf(tier)];
  const bool is_queued = in.queue_index != BlockInTier::kNotQueued;
  const bool is_leaf = in.copy_count > 0 && in.child_count == 0;
  if (order.recency == nullptr || is_queued == is_leaf) {
    return;
  }
  if (is_leaf) {
    order.recency->Add(block);
    order.held_queued += in.held_count > 0 ? 1 : 0;
  } else {
    order.recency->Remove(block);
    order.held_queued -= in.held_count > 0 ? 1 : 0;
  }
}

// --- Blocks --------------------------------------------------------------------------------------

Block* BlockTable::LinkBlock(const BlockClaim& claim, absl::Time now) {
  Block* block = blocks_.Take();
  block->is_linked = true;
  block->name = claim.name;
  block->parent = claim.parent;
  block->first_position = claim.first_position;
  block->tokens = claim.tokens;
  block->child_count = 0;
  block->in = {};
  block->images.clear();
  Touch(block, now);
  if (const auto children = orphans_.find(claim.name); children != orphans_.end()) {
    block->child_count = children->second.count;
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      block->in[tier].child_count = children->second.count_in[tier];
    }
    orphans_.erase(children);
  }
  by_name_.insert(block);
  ++figures_.block_count;
  ++figures_by_space_[claim.name.space_id].block_count;
  if (!IsNone(claim.parent)) {
    AddChild(ParentOf(*block), block->first_position);
  }
  return block;
}

void BlockTable::RemoveBlock(Block* block) {
  CAIRN_CHECK(block->images.empty());
  by_name_.erase(block);
  if (block->child_count > 0) {
    Orphans& orphans = orphans_[block->name];
    orphans.count = block->child_count;
    orphans.first_position = block->first_position + block->tokens;
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      orphans.count_in[tier] = block->in[tier].child_count;
    }
  }
  if (!IsNone(block->parent)) {
    RemoveChild(ParentOf(*block));
  }
  --figures_.block_count;
  const auto figures = figures_by_space_.find(block->name.space_id);
  if (--figures->second.block_count == 0) {
    figures_by_space_.erase(figures);
  }
  block->is_linked = false;
  blocks_.Return(block);
}

absl::StatusOr<Image*> BlockTable::Add(NewImage image, absl::Time now) {
  if (At(image.copy.extent.tier()).is_out) {
    return absl::UnavailableError(
        absl::StrCat(ToAbsl(Name(image.copy.extent.tier())), " tier: its device is out"));
  }
  Block* block = Find(image.claim.name);
  Visits visits;
  while (figures_.image_count >= images_max_ ||
         (block == nullptr && figures_.block_count >= blocks_max_)) {
    const bool is_of_images = figures_.image_count >= images_max_;
    if (block != nullptr) {
      Touch(block, now);  // the last to go
    }
    if (!EvictAnywhere(is_of_images ? EvictionReason::kImages : EvictionReason::kBlocks, visits)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "index: ", is_of_images ? images_max_ : blocks_max_, is_of_images ? " images" : " blocks",
          " are there and what could go is pinned"));
    }
    block = Find(image.claim.name);
  }
  if (block == nullptr) {
    block = LinkBlock(image.claim, now);
  }
  Image* linked = LinkImage(block, {.space_id = image.claim.name.space_id,
                                    .key = image.claim.name.key,
                                    .first_position = image.claim.first_position,
                                    .tokens = image.claim.tokens,
                                    .group = image.claim.group,
                                    .slice = image.claim.slice,
                                    .source_bytes = image.source_bytes});
  LinkCopy(linked, std::move(image.copy));
  if (image.is_encode_pending) {
    SetPending(linked);
  }
  return linked;
}

void BlockTable::SetPending(Image* image) {
  pending_count_ += image->is_encode_pending ? 0 : 1;
  image->is_encode_pending = true;
  RefreshUncopied(image);
}

void BlockTable::ClearPending(Image* image) {
  pending_count_ -= image->is_encode_pending ? 1 : 0;
  image->is_encode_pending = false;
  RefreshUncopied(image);
}

void BlockTable::Touch(Block* block, absl::Time now) {
  block->last_use = ++uses_;
  block->used_at = now;
}

Block* BlockTable::AtSlot(uint32_t slot) {
  Block* block = blocks_.At(slot);
  return block->is_linked ? block : nullptr;
}

const Block* BlockTable::AtSlot(uint32_t slot) const {
  const Block* block = blocks_.At(slot);
  return block->is_linked ? block : nullptr;
}

IndexFigures BlockTable::figures(uint64_t space_id) const {
  const auto found = figures_by_space_.find(space_id);
  return found == figures_by_space_.end() ? IndexFigures{} : found->second;
}

}  // namespace cairn
