// SPDX-License-Identifier: Apache-2.0
// Images and their copies: how they come and go, and what holds them.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "codecs/image/image.h"
#include "service/index/block_table.h"

namespace cairn {
namespace {

size_t RecipeIndex(const codecs::Recipe& recipe) {
  const auto recipes = codecs::AllRecipes();
  const auto found = std::find(recipes.begin(), recipes.end(), recipe);
  return static_cast<size_t>(found - recipes.begin()) +
         (found == recipes.end() && recipe.NeedsBank() ? 1 : 0);
}

uint32_t DirectoryCrcOf(const NewCopy& copy) {
  const std::span<const std::byte> bytes = copy.extent.bytes();
  return bytes.empty() ? copy.directory_crc : codecs::PeekDirectoryCrc(bytes);
}

}  // namespace

// --- Link and unlink -----------------------------------------------------------------------------

Image* BlockTable::TakeImage(Block* block, const ImageFacts& facts) {
  Image* image = images_.Take();
  image->facts = facts;
  image->block = block;
  image->copies = {};
  image->is_writing = {};
  image->leased = {};
  image->pins = image->lease_pins = image->users = 0;
  image->let_go = LetGo::kNot;
  image->passed_over = 0;
  Awake(block).images.push_back({facts.group, facts.slice, image});
  return image;
}

Copy* BlockTable::TakeCopy(Image* image) {
  Copy* copy = copies_.Take();
  copy->image = image;
  copy->pins = 0;
  copy->is_linked = true;
  copy->is_held = false;
  ++image->users;
  return copy;
}

Image* BlockTable::LinkImage(Block* block, const ImageFacts& facts) {
  Image* image = TakeImage(block, facts);
  for (IndexFigures* figures : {&figures_, &figures_by_space_[facts.space_id]}) {
    ++figures->image_count;
    figures->source_bytes += facts.source_bytes;
  }
  return image;
}

void BlockTable::LinkCopy(Image* image, NewCopy copy) {
  const TierId tier = copy.extent.tier();
  CAIRN_CHECK(At(tier).exists && image->copies[IndexOf(tier)] == nullptr);
  Copy* linked = TakeCopy(image);
  linked->facts = {.tier = tier,
                   .recipe = copy.recipe,
                   .image_bytes = copy.extent.size_bytes(),
                   .directory_crc = DirectoryCrcOf(copy)};
  linked->extent = std::move(copy.extent);
  linked->extent.SetOwner(linked);
  linked->side_object = std::move(copy.side_object);
  linked->linked_at = uses_;
  image->copies[IndexOf(tier)] = linked;
  Count(*linked, +1);
  At(tier).published_bytes_total += linked->facts.image_bytes;
  Block* block = image->block;
  if (block->awake->in[IndexOf(tier)].copy_count++ == 0) {
    ++At(tier).figures.block_count;
    CountChildIn(*block, tier, +1);
    EmitEvent(*linked, true);
  }
  Requeue(block, tier);
  RefreshHeld(image);
  SetLetGo(image, LetGo::kNot);
}

uint64_t BlockTable::UnlinkCopy(Copy* copy) {
  Image* image = copy->image;
  Block* block = image->block;
  const TierId tier = copy->facts.tier;
  SetHeld(copy, false);
  Count(*copy, -1);
  At(tier).unlinked_bytes_total += copy->facts.image_bytes;
  image->copies[IndexOf(tier)] = nullptr;
  copy->is_linked = false;
  copy->extent.SetOwner(nullptr);
  NoteIdle(block);
  if (--block->awake->in[IndexOf(tier)].copy_count == 0) {
    --At(tier).figures.block_count;
    CountChildIn(*block, tier, -1);
    EmitEvent(*copy, false);
  }
  Requeue(block, tier);
  RefreshHeld(image);
  RefreshQueues(image);
  if (copy->pins > 0) {
    copy->extent.Unlist();
    SetHeld(copy, true);
    return 0;
  }
  const uint64_t freed = copy->extent.rounded_bytes();
  FreeCopy(copy);
  return freed;
}

void BlockTable::UnlinkIfLost(Image* image) {
  Block* block = image->block;
  for (const Copy* copy : image->copies) {
    if (copy != nullptr && At(copy->facts.tier).traits.may_hold_last) {
      return;
    }
  }
  for (Copy* copy : image->copies) {
    if (copy != nullptr) {
      UnlinkCopy(copy);
    }
  }
  ImageRefs& refs = block->awake->images;
  const auto ref = std::find_if(refs.begin(), refs.end(),
                                [image](const ImageRef& r) { return r.image == image; });
  CAIRN_CHECK(ref != refs.end());
  refs.erase(ref);
  ForgetImage(image);
  if (refs.empty()) {
    RemoveBlock(block);
  }
}

void BlockTable::ForgetImage(Image* image) {
  for (IndexFigures* figures : {&figures_, &figures_by_space_[image->facts.space_id]}) {
    --figures->image_count;
    figures->source_bytes -= image->facts.source_bytes;
  }
  image->block = nullptr;
  ClearPending(image);
  FreeIfUnused(image);
}

uint64_t BlockTable::UnlinkBlock(Block* block) {
  uint64_t freed = 0;
  for (const ImageRef& ref : Wake(block)) {
    for (Copy* copy : ref.image->copies) {
      freed += copy == nullptr ? 0 : UnlinkCopy(copy);
    }
    ForgetImage(ref.image);
  }
  block->awake->images.clear();
  RemoveBlock(block);
  return freed;
}

void BlockTable::FreeCopy(Copy* copy) {
  Image* image = copy->image;
  copy->extent.Reset();
  copy->side_object.Reset();
  copies_.Return(copy);
  --image->users;
  FreeIfUnused(image);
}

void BlockTable::FreeIfUnused(Image* image) {
  if (image->users == 0 && image->block == nullptr) {
    images_.Return(image);
  }
}

// --- What becomes of a copy ----------------------------------------------------------------------

void BlockTable::Replace(Copy* copy, NewCopy successor) {
  CAIRN_CHECK(copy->is_linked && successor.extent.tier() == copy->facts.tier);
  Image* image = copy->image;
  const TierId tier = copy->facts.tier;
  uint32_t& copy_count = image->block->awake->in[IndexOf(tier)].copy_count;
  ++copy_count;  // the block neither goes nor comes
  UnlinkCopy(copy);
  LinkCopy(image, std::move(successor));
  --copy_count;
  ClearPending(image);
  if (image->lease_pins > 0) {
    CountLease(image, tier, image->copies[IndexOf(tier)]->extent.rounded_bytes());
  }
}

void BlockTable::Lose(Copy* copy) {
  CAIRN_CHECK(copy->is_linked);
  Image* image = copy->image;
  ++At(copy->facts.tier).lost_total;
  UnlinkCopy(copy);
  UnlinkIfLost(image);
}

void BlockTable::LoseIn(Block* block, TierId tier, uint64_t begin, uint64_t end) {
  if (RestsOutside(*block, begin, end)) {
    return;
  }
  ImageList images;
  for (const ImageRef& ref : Wake(block)) {
    images.push_back(ref.image);
  }
  for (Image* image : images) {  // the block may go with the last
    Copy* copy = image->copies[IndexOf(tier)];
    if (copy != nullptr && copy->extent.offset() >= begin && copy->extent.offset() < end) {
      Lose(copy);
    }
  }
}

bool BlockTable::BeginCopy(Image* image, TierId tier) {
  const size_t t = IndexOf(tier);
  if (image->block == nullptr || !At(tier).exists || At(tier).is_out ||
      image->copies[t] != nullptr || image->is_writing[t]) {
    return false;
  }
  image->is_writing[t] = true;
  ++image->users;
  RefreshQueues(image);
  return true;
}

bool BlockTable::FinishCopy(Image* image, TierId tier, NewCopy copy) {
  CAIRN_CHECK(image->is_writing[IndexOf(tier)] && copy.extent.tier() == tier);
  const bool is_taken = image->block != nullptr && !At(tier).is_out;
  if (is_taken && tier == TierId::kHost) {
    MakeRoomForAwake(image->block->name);
  }
  if (is_taken) {
    LinkCopy(image, std::move(copy));
    if (image->lease_pins > 0) {
      CountLease(image, tier, image->copies[IndexOf(tier)]->extent.rounded_bytes());
    }
  }
  GiveUpCopy(image, tier);
  return is_taken;
}

void BlockTable::GiveUpCopy(Image* image, TierId tier) {
  image->is_writing[IndexOf(tier)] = false;
  RefreshQueues(image);
  --image->users;
  NoteIdle(image);
  FreeIfUnused(image);
}

// --- Pins ----------------------------------------------------------------------------------------

bool BlockTable::IsLast(const Copy& copy) const {
  return At(copy.facts.tier).traits.may_hold_last &&
         std::none_of(copy.image->copies.begin(), copy.image->copies.end(), [&](const Copy* other) {
           return other != nullptr && other != &copy && At(other->facts.tier).traits.may_hold_last;
         });
}

void BlockTable::SetHeld(Copy* copy, bool is_held) {
  if (copy->is_held == is_held) {
    return;
  }
  copy->is_held = is_held;
  InTier& tier = At(copy->facts.tier);
  const uint64_t one = is_held ? 1 : UINT64_MAX;  // wraps: adds or takes away
  tier.figures.pinned_bytes += one * copy->extent.rounded_bytes();
  if (!copy->is_linked) {
    return;
  }
  BlockInTier& in = copy->image->block->awake->in[IndexOf(copy->facts.tier)];
  const bool was_held = in.held_count > 0;
  in.held_count += static_cast<uint32_t>(one);
  if (was_held != (in.held_count > 0)) {
    tier.held_blocks += one;
    if (in.queue_index != BlockInTier::kNotQueued) {
      tier.orders[copy->image->block->is_orphaned ? kOrphaned : kWhole].held += one;
    }
  }
}

bool BlockTable::IsKept(const Image& image) {
  return image.pins > 0 || (image.block != nullptr && image.block->child_put_count() > 0);
}

void BlockTable::RefreshHeld(Image* image) {
  for (Copy* copy : image->copies) {
    if (copy != nullptr) {
      SetHeld(copy, copy->pins > 0 || (IsKept(*image) && IsLast(*copy)));
    }
  }
}

void BlockTable::RefreshHeld(Block* block) {
  if (block->is_awake()) {
    for (const ImageRef& ref : block->awake->images) {
      RefreshHeld(ref.image);
    }
  }
}

void BlockTable::Pin(Image* image) {
  ++image->users;
  if (image->pins++ == 0) {
    RefreshHeld(image);
  }
}

void BlockTable::Unpin(Image* image) {
  CAIRN_CHECK(image->pins > 0);
  if (--image->pins == 0) {
    RefreshHeld(image);
    NoteIdle(image);
  }
  --image->users;
  FreeIfUnused(image);
}

void BlockTable::Pin(Copy* copy) {
  if (copy->pins++ == 0) {
    SetHeld(copy, true);
  }
}

void BlockTable::Unpin(Copy* copy) {
  CAIRN_CHECK(copy->pins > 0);
  if (--copy->pins > 0) {
    return;
  }
  if (copy->is_linked) {
    SetHeld(copy, IsKept(*copy->image) && IsLast(*copy));
    NoteIdle(copy->image);
  } else {
    SetHeld(copy, false);
    FreeCopy(copy);
  }
}

void BlockTable::CountLease(Image* image, TierId tier, uint64_t bytes) {
  uint64_t& counted = image->leased[IndexOf(tier)];
  At(tier).figures.leased_bytes += bytes - counted;  // wraps: adds or takes away
  counted = bytes;
}

void BlockTable::LeasePin(Image* image) {
  Pin(image);
  if (image->lease_pins++ > 0) {
    return;
  }
  for (const Copy* copy : image->copies) {
    if (copy != nullptr) {
      CountLease(image, copy->facts.tier, copy->extent.rounded_bytes());
    }
  }
}

void BlockTable::LeaseUnpin(Image* image) {
  CAIRN_CHECK(image->lease_pins > 0);
  if (--image->lease_pins == 0) {
    for (const TierId tier : kReadOrder) {
      CountLease(image, tier, 0);
    }
  }
  Unpin(image);
}

bool BlockTable::IsLeasedPast(uint64_t host_bytes_max) const {
  return leased_bytes() > host_bytes_max ||
         std::any_of(tiers_.begin(), tiers_.end(), [](const InTier& tier) {
           return tier.figures.leased_bytes > tier.lease_bytes_max;
         });
}

// --- Figures -------------------------------------------------------------------------------------

void BlockTable::Count(const Copy& copy, int sign) {
  const uint64_t one = static_cast<uint64_t>(sign);  // wraps: adds or takes away
  const ImageFacts& facts = copy.image->facts;
  const uint64_t bytes = one * copy.facts.image_bytes, source_bytes = one * facts.source_bytes;
  for (IndexFigures* figures : {&figures_, &figures_by_space_[facts.space_id]}) {
    figures->image_bytes += bytes;
    figures->tier_bytes[IndexOf(copy.facts.tier)] += bytes;
    figures->copies_source_bytes += source_bytes;
  }
  CopyFigures& tier = At(copy.facts.tier).figures;
  tier.copy_count += one;
  tier.image_bytes += bytes;
  tier.source_bytes += source_bytes;
  RecipeFigures& recipe = figures_by_recipe_[RecipeIndex(copy.facts.recipe)];
  recipe.image_count += one;
  recipe.image_bytes += bytes;
  recipe.source_bytes += source_bytes;
}

}  // namespace cairn
