// SPDX-License-Identifier: Apache-2.0
#include "service/index/block_table.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "codecs/types/shape.h"
#include "service/index/cover.h"

namespace cairn {
namespace {

// Far below what could overflow when a block's tokens are added.
constexpr uint64_t kFirstPositionMax = uint64_t{1} << 48;

bool IsNone(const proto::BlockKey& key) { return key == proto::BlockKey{}; }

BlockName ParentOf(const Block& block) { return {block.name.space_id, block.parent}; }

size_t RecipeIndex(const codecs::Recipe& recipe) {
  const auto recipes = codecs::AllRecipes();
  const auto found = std::find(recipes.begin(), recipes.end(), recipe);
  return static_cast<size_t>(found - recipes.begin()) +
         (found == recipes.end() && recipe.NeedsBank() ? 1 : 0);
}

}  // namespace

BlockTable::BlockTable(uint64_t blocks_max) : blocks_max_(blocks_max), recency_(blocks_max) {
  CAIRN_CHECK(blocks_max > 0 && codecs::AllRecipes().size() + std::size(kRecipeFamilies) <=
                                    figures_by_recipe_.size());
  by_name_.reserve(blocks_max);
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
      bytes += image->facts.image_bytes;
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
    if (block->queue_index != Block::kNotQueued && block->pinned_images > 0) {
      --pinned_queued_;
    }
    recency_.Remove(block);
    return;
  }
  Orphans& orphans = orphans_[parent];
  ++orphans.count;
  orphans.first_position = first_position;
}

void BlockTable::RemoveChild(const BlockName& parent) {
  if (Block* block = Find(parent); block != nullptr) {
    CAIRN_CHECK(block->child_count > 0);
    if (--block->child_count == 0) {
      recency_.Add(block);
      pinned_queued_ += block->pinned_images > 0 ? 1 : 0;
    }
    return;
  }
  const auto found = orphans_.find(parent);
  CAIRN_CHECK(found != orphans_.end() && found->second.count > 0);
  if (--found->second.count == 0) {
    orphans_.erase(found);
  }
}

// --- Blocks and images ---------------------------------------------------------------------------

Block* BlockTable::LinkBlock(const BlockClaim& claim, absl::Time now) {
  Block* block = blocks_.Take();
  block->is_linked = true;
  block->name = claim.name;
  block->parent = claim.parent;
  block->first_position = claim.first_position;
  block->tokens = claim.tokens;
  block->child_count = 0;
  block->pinned_images = 0;
  block->images.clear();
  Touch(block, now);
  if (const auto children = orphans_.find(claim.name); children != orphans_.end()) {
    block->child_count = children->second.count;
    orphans_.erase(children);
  } else {
    recency_.Add(block);
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
  CAIRN_CHECK(block->images.empty() && block->pinned_images == 0);
  by_name_.erase(block);
  recency_.Remove(block);
  if (block->child_count > 0) {
    orphans_[block->name] = {block->child_count, block->first_position + block->tokens};
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

Image* BlockTable::LinkImage(Block* block, const ImageFacts& facts, Extent extent,
                             SideObjectRef side_object) {
  Image* image = images_.Take();
  image->facts = facts;
  image->extent = std::move(extent);
  image->extent.SetOwner(image);
  image->side_object = std::move(side_object);
  image->block = block;
  image->pins = 0;
  image->lease_pins = 0;
  image->is_encode_pending = false;
  Count(facts, +1);
  published_bytes_total_ += facts.image_bytes;
  return image;
}

absl::StatusOr<Image*> BlockTable::Add(NewImage image, absl::Time now) {
  Block* block = Find(image.claim.name);
  if (block == nullptr) {
    if (by_name_.size() >= blocks_max_) {
      Visits visits;
      if (EvictOldest(EvictionReason::kBlocks, uses_, visits) == 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("index: ", blocks_max_, " blocks are there and what could go is pinned"));
      }
    }
    block = LinkBlock(image.claim, now);
  }
  const ImageFacts facts = {.space_id = image.claim.name.space_id,
                            .key = image.claim.name.key,
                            .first_position = image.claim.first_position,
                            .tokens = image.claim.tokens,
                            .group = image.claim.group,
                            .slice = image.claim.slice,
                            .recipe = image.recipe,
                            .tier = TierId::kHost,
                            .image_bytes = image.extent.size_bytes(),
                            .source_bytes = image.source_bytes};
  Image* linked = LinkImage(block, facts, std::move(image.extent), std::move(image.side_object));
  if (image.is_encode_pending) {
    SetPending(linked);
  }
  block->images.push_back({facts.group, facts.slice, linked});
  return linked;
}

Image* BlockTable::Swap(Image* image, const codecs::Recipe& recipe, Extent extent,
                        SideObjectRef side_object) {
  Block* block = image->block;
  ImageFacts facts = image->facts;
  facts.recipe = recipe;
  facts.image_bytes = extent.size_bytes();
  Image* swapped = LinkImage(block, facts, std::move(extent), std::move(side_object));
  for (ImageRef& ref : block->images) {
    if (ref.image == image) {
      ref.image = swapped;
    }
  }
  ForgetImage(image);
  return swapped;
}

uint64_t BlockTable::ForgetImage(Image* image) {
  Block* block = image->block;
  Count(image->facts, -1);
  unlinked_bytes_total_ += image->facts.image_bytes;
  image->block = nullptr;
  ClearPending(image);
  image->extent.SetOwner(nullptr);
  if (image->pins == 0) {
    const uint64_t freed = image->extent.rounded_bytes();
    FreeImage(image);
    return freed;
  }
  if (--block->pinned_images == 0) {
    --pinned_blocks_;
    pinned_queued_ -= block->queue_index != Block::kNotQueued ? 1 : 0;
  }
  return 0;
}

void BlockTable::FreeImage(Image* image) {
  image->extent.Reset();
  image->side_object.Reset();
  images_.Return(image);
}

void BlockTable::UnlinkImage(Image* image) {
  Block* block = image->block;
  const auto ref = std::find_if(block->images.begin(), block->images.end(),
                                [image](const ImageRef& r) { return r.image == image; });
  CAIRN_CHECK(ref != block->images.end());
  block->images.erase(ref);
  ForgetImage(image);
  if (block->images.empty()) {
    RemoveBlock(block);
  }
}

uint64_t BlockTable::UnlinkBlock(Block* block) {
  uint64_t freed = 0;
  for (const ImageRef& ref : block->images) {
    freed += ForgetImage(ref.image);
  }
  block->images.clear();
  RemoveBlock(block);
  return freed;
}

void BlockTable::SetPending(Image* image) {
  pending_count_ += image->is_encode_pending ? 0 : 1;
  image->is_encode_pending = true;
}

void BlockTable::ClearPending(Image* image) {
  pending_count_ -= image->is_encode_pending ? 1 : 0;
  image->is_encode_pending = false;
}

void BlockTable::Touch(Block* block, absl::Time now) {
  block->last_use = ++uses_;
  block->used_at = now;
}

// --- Pins ----------------------------------------------------------------------------------------

void BlockTable::Pin(Image* image) {
  if (image->pins++ > 0) {
    return;
  }
  pinned_bytes_ += image->extent.rounded_bytes();
  Block* block = image->block;
  CAIRN_CHECK(block != nullptr);
  if (block->pinned_images++ == 0) {
    ++pinned_blocks_;
    pinned_queued_ += block->queue_index != Block::kNotQueued ? 1 : 0;
  }
}

void BlockTable::Unpin(Image* image) {
  CAIRN_CHECK(image->pins > 0);
  if (--image->pins > 0) {
    return;
  }
  pinned_bytes_ -= image->extent.rounded_bytes();
  Block* block = image->block;
  if (block == nullptr) {
    FreeImage(image);
    return;
  }
  if (--block->pinned_images == 0) {
    --pinned_blocks_;
    pinned_queued_ -= block->queue_index != Block::kNotQueued ? 1 : 0;
  }
}

void BlockTable::LeasePin(Image* image) {
  Pin(image);
  if (image->lease_pins++ == 0) {
    leased_bytes_ += image->extent.rounded_bytes();
  }
}

void BlockTable::LeaseUnpin(Image* image) {
  CAIRN_CHECK(image->lease_pins > 0);
  if (--image->lease_pins == 0) {
    leased_bytes_ -= image->extent.rounded_bytes();
  }
  Unpin(image);
}

// --- Figures -------------------------------------------------------------------------------------

Block* BlockTable::AtSlot(uint32_t slot) {
  Block* block = blocks_.At(slot);
  return block->is_linked ? block : nullptr;
}

const Block* BlockTable::AtSlot(uint32_t slot) const {
  const Block* block = blocks_.At(slot);
  return block->is_linked ? block : nullptr;
}

void BlockTable::Count(const ImageFacts& facts, int sign) {
  const uint64_t one = static_cast<uint64_t>(sign);  // wraps: adds or takes away
  IndexFigures& space = figures_by_space_[facts.space_id];
  for (IndexFigures* figures : {&figures_, &space}) {
    figures->image_count += one;
    figures->image_bytes += one * facts.image_bytes;
    figures->source_bytes += one * facts.source_bytes;
  }
  RecipeFigures& recipe = figures_by_recipe_[RecipeIndex(facts.recipe)];
  recipe.image_count += one;
  recipe.image_bytes += one * facts.image_bytes;
  recipe.source_bytes += one * facts.source_bytes;
}

IndexFigures BlockTable::figures(uint64_t space_id) const {
  const auto found = figures_by_space_.find(space_id);
  return found == figures_by_space_.end() ? IndexFigures{} : found->second;
}

}  // namespace cairn
