// SPDX-License-Identifier: Apache-2.0
#include "service/index/tier_set.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "codecs/image/image.h"
#include "codecs/recipe/recipe.h"
#include "service/limits.h"

namespace cairn {
namespace {

// A match and the get that follows count as one use. So do two slices of one put. The time of a use
// has a resolution of one second.
constexpr absl::Duration kReuseMin = absl::Seconds(2);

// Returns true if the index was full, not the tier.
bool IsForIndex(EvictionReason reason) {
  return reason == EvictionReason::kBlocks || reason == EvictionReason::kImages ||
         reason == EvictionReason::kIndex;
}

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

static_assert(sizeof(AwakeBlock) + 4 * (sizeof(Image) + 2 * sizeof(Copy)) <=
                  limits::kIndexBytesAwake,
              "a block with four images");

TierSet::TierSet(RestStore& records, WriteBackQueue& write_back, std::span<CopyTier* const> tiers,
                 uint64_t blocks_max, const Clock& clock, EventLog& events)
    : records_(records), write_back_(write_back), clock_(clock), events_(events) {
  CAIRN_CHECK(codecs::AllRecipes().size() + std::size(kRecipeFamilies) <=
              figures_by_recipe_.size());
  for (const CopyTier* tier : tiers) {
    InTier& in = At(tier->id());
    in.exists = true;
    in.traits = tier->traits();
    if (tier->id() != TierId::kHost && in.traits.may_hold_last) {
      in.lease_bytes_max = tier->capacity_bytes() / 100 * limits::kPinnedPercentMax;
    }
    if (in.traits.is_leaf_first) {
      const uint64_t most = std::max(limits::BlocksMax(tier->capacity_bytes()),
                                     records.awake_bytes_max() / limits::kIndexBytesAwake);
      for (size_t i = 0; i < kOrderCount; ++i) {
        const bool is_usual = i == kOrphaned || i == kRanked + kPlainRank;
        const uint64_t ranked_max = i == kRanked + kFetchedRank ? 0 : limits::kHintsMax;
        in.orders[i].recency = std::make_unique<Recency>(
            IndexOf(tier->id()), std::min({blocks_max, most, is_usual ? most : ranked_max}));
      }
    }
  }
}

// --- Images and copies ---------------------------------------------------------------------------

Image* TierSet::LinkImage(Block* block, const ImageFacts& facts) {
  Image* image = records_.TakeImage(block, facts);
  for (IndexFigures* figures : {&figures_, &figures_by_space_[facts.space_id]}) {
    ++figures->image_count;
    figures->source_bytes += facts.source_bytes;
  }
  return image;
}

void TierSet::LinkCopy(Image* image, NewCopy copy) {
  const TierId tier = copy.extent.tier();
  CAIRN_CHECK(At(tier).exists && image->copies[IndexOf(tier)] == nullptr);
  Copy* linked = records_.TakeCopy(image);
  linked->facts = {.tier = tier,
                   .recipe = copy.recipe,
                   .image_bytes = copy.extent.size_bytes(),
                   .directory_crc = DirectoryCrcOf(copy)};
  linked->extent = std::move(copy.extent);
  linked->extent.SetOwner(linked);
  linked->side_object = std::move(copy.side_object);
  linked->linked_at = records_.uses();
  image->copies[IndexOf(tier)] = linked;
  Count(*linked, +1);
  At(tier).published_bytes_total += linked->facts.image_bytes;
  Block* block = image->block;
  if (block->awake->in[IndexOf(tier)].copy_count++ == 0) {
    ++At(tier).figures.block_count;
    CountChildIn(*block, tier, +1);
    EmitEvent(*block, tier, true);
    Announce(*block, tier, true);
  }
  Requeue(block, tier);
  RefreshHeld(image);
  write_back_.SetSuppressed(image, Suppressed::kNot);
}

uint64_t TierSet::UnlinkCopy(Copy* copy) {
  Image* image = copy->image;
  Block* block = image->block;
  const TierId tier = copy->facts.tier;
  SetHeld(copy, false);
  Count(*copy, -1);
  At(tier).unlinked_bytes_total += copy->facts.image_bytes;
  image->copies[IndexOf(tier)] = nullptr;
  copy->extent.SetOwner(nullptr);
  records_.NoteIdle(block);
  if (--block->awake->in[IndexOf(tier)].copy_count == 0) {
    --At(tier).figures.block_count;
    CountChildIn(*block, tier, -1);
    EmitEvent(*block, tier, false);
    Announce(*block, tier, false);
  }
  Requeue(block, tier);
  RefreshHeld(image);
  write_back_.Refresh(image);
  if (copy->pins > 0) {
    copy->extent.Unlist();
    SetHeld(copy, true);
    return 0;
  }
  const uint64_t freed = copy->extent.rounded_bytes();
  records_.ReturnCopy(copy);
  return freed;
}

void TierSet::UnlinkIfLost(Image* image) {
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
    write_back_.Forget(block);
  }
}

void TierSet::ForgetImage(Image* image) {
  for (IndexFigures* figures : {&figures_, &figures_by_space_[image->facts.space_id]}) {
    --figures->image_count;
    figures->source_bytes -= image->facts.source_bytes;
  }
  image->block = nullptr;
  write_back_.ClearPending(image);
  records_.ReturnIfUnused(image);
}

void TierSet::UnlinkImages(Block* block) {
  for (const ImageRef& ref : records_.Wake(block)) {
    for (Copy* copy : ref.image->copies) {
      if (copy != nullptr) {
        UnlinkCopy(copy);
      }
    }
    ForgetImage(ref.image);
  }
  block->awake->images.clear();
  write_back_.Forget(block);
}

void TierSet::Replace(Copy* copy, NewCopy successor) {
  CAIRN_CHECK(copy->is_linked() && successor.extent.tier() == copy->facts.tier);
  Image* image = copy->image;
  const TierId tier = copy->facts.tier;
  uint32_t& copy_count = image->block->awake->in[IndexOf(tier)].copy_count;
  ++copy_count;  // the block is neither added nor removed
  UnlinkCopy(copy);
  LinkCopy(image, std::move(successor));
  --copy_count;
  write_back_.ClearPending(image);
  if (image->lease_pins > 0) {
    CountLease(image, tier, image->copies[IndexOf(tier)]->extent.rounded_bytes());
  }
}

void TierSet::Lose(Copy* copy) {
  CAIRN_CHECK(copy->is_linked());
  Image* image = copy->image;
  ++At(copy->facts.tier).figures.lost_count;
  UnlinkCopy(copy);
  UnlinkIfLost(image);
}

void TierSet::Lose(Block* block, TierId tier, uint64_t begin, uint64_t end) {
  if (records_.RestsOutside(*block, begin, end)) {
    return;
  }
  ImageList images;
  for (const ImageRef& ref : records_.Wake(block)) {
    images.push_back(ref.image);
  }
  for (Image* image : images) {  // some images may be unlinked with their copies
    Copy* copy = image->copies[IndexOf(tier)];
    if (copy != nullptr && copy->extent.offset() >= begin && copy->extent.offset() < end) {
      Lose(copy);
    }
  }
}

Copy* TierSet::FindCopy(Block* block, TierId tier, uint64_t offset) {
  for (const ImageRef& ref : records_.Wake(block)) {
    Copy* copy = ref.image->copies[IndexOf(tier)];
    if (copy != nullptr && copy->extent.offset() == offset) {
      return copy;
    }
  }
  return nullptr;
}

bool TierSet::BeginCopy(Image* image, TierId tier) {
  const size_t t = IndexOf(tier);
  if (image->block == nullptr || !At(tier).exists || At(tier).is_out ||
      image->copies[t] != nullptr || image->is_writing[t]) {
    return false;
  }
  image->is_writing[t] = true;
  ++image->users;
  write_back_.Refresh(image);
  return true;
}

bool TierSet::FinishCopy(Image* image, TierId tier, NewCopy copy) {
  CAIRN_CHECK(image->is_writing[IndexOf(tier)] && copy.extent.tier() == tier);
  const bool is_taken = MayFinishCopy(*image, tier);
  if (is_taken) {
    LinkCopy(image, std::move(copy));
    if (image->lease_pins > 0) {
      CountLease(image, tier, image->copies[IndexOf(tier)]->extent.rounded_bytes());
    }
  }
  GiveUpCopy(image, tier);
  return is_taken;
}

void TierSet::GiveUpCopy(Image* image, TierId tier) {
  image->is_writing[IndexOf(tier)] = false;
  write_back_.Refresh(image);
  --image->users;
  records_.NoteIdle(image);
  records_.ReturnIfUnused(image);
}

// --- Events --------------------------------------------------------------------------------------

IndexEvent TierSet::EventOf(const Block& block, TierId tier, bool is_stored) const {
  const Block* parent = records_.ParentOf(block);
  return {.name = block.name,
          .is_stored = is_stored,
          .tier = tier,
          .tokens = static_cast<uint16_t>(block.tokens),
          .parent = parent == nullptr ? proto::BlockKey{} : parent->name.key,
          .first_position = block.first_position,
          .names = records_.NamesOf(block)};
}

void TierSet::EmitEvent(const Block& block, TierId tier, bool is_stored) {
  if (events_.is_recording()) {
    events_.Append(EventOf(block, tier, is_stored));
  }
}

void TierSet::SetAnnouncements(AnnounceRing* ring) {
  announcements_ = ring;
  for (InTier& tier : tiers_) {
    const Order& plain = tier.orders[kRanked + kPlainRank];
    if (plain.recency != nullptr) {
      tier.orders[kRanked + kFetchedRank].recency->Reserve(plain.recency->capacity());
    }
  }
}

void TierSet::Announce(const Block& block, TierId tier, bool is_stored) {
  if (announcements_ == nullptr) {
    return;
  }
  for (const TierId other : kReadOrder) {
    if (other != tier && block.in(IndexOf(other)).copy_count > 0) {
      return;
    }
  }
  Visits visits;
  const uint64_t run = records_.LearnRun(block, visits).value_or(proto::kNoRun);
  if (run != proto::kNoRun) {
    announcements_->Append({.name = block.name, .run = run, .is_stored = is_stored});
  }
}

void TierSet::EmitNamed(const Block& block) {
  for (const TierId tier : kReadOrder) {
    if (records_.HasCopiesIn(block, tier)) {
      EmitEvent(block, tier, true);
    }
  }
}

// --- Pins and leases -----------------------------------------------------------------------------

bool TierSet::IsLast(const Copy& copy) const {
  return At(copy.facts.tier).traits.may_hold_last &&
         std::none_of(copy.image->copies.begin(), copy.image->copies.end(), [&](const Copy* other) {
           return other != nullptr && other != &copy && At(other->facts.tier).traits.may_hold_last;
         });
}

void TierSet::SetHeld(Copy* copy, bool is_held) {
  if (copy->is_held == is_held) {
    return;
  }
  copy->is_held = is_held;
  InTier& tier = At(copy->facts.tier);
  const uint64_t one = is_held ? 1 : UINT64_MAX;  // unsigned wraparound: adds or subtracts
  tier.figures.pinned_bytes += one * copy->extent.rounded_bytes();
  if (!copy->is_linked()) {
    return;
  }
  BlockInTier& in = copy->image->block->awake->in[IndexOf(copy->facts.tier)];
  const bool was_held = in.held_count > 0;
  in.held_count += static_cast<uint32_t>(one);
  if (was_held != (in.held_count > 0)) {
    tier.held_blocks += one;
    if (in.queue_index != BlockInTier::kNotQueued) {
      OrderOf(tier, *copy->image->block).held += one;
    }
  }
}

bool TierSet::IsKept(const Image& image) {
  return image.pins > 0 || (image.block != nullptr && image.block->child_put_count() > 0);
}

void TierSet::RefreshHeld(Image* image) {
  for (Copy* copy : image->copies) {
    if (copy != nullptr) {
      SetHeld(copy, copy->pins > 0 || (IsKept(*image) && IsLast(*copy)));
    }
  }
}

void TierSet::RefreshHeld(Block* block) {
  if (block->is_awake()) {
    for (const ImageRef& ref : block->awake->images) {
      RefreshHeld(ref.image);
    }
  }
}

void TierSet::Pin(Image* image) {
  ++image->users;
  if (image->pins++ == 0) {
    RefreshHeld(image);
  }
}

void TierSet::Unpin(Image* image) {
  CAIRN_CHECK(image->pins > 0);
  if (--image->pins == 0) {
    RefreshHeld(image);
    records_.NoteIdle(image);
  }
  --image->users;
  records_.ReturnIfUnused(image);
}

void TierSet::Pin(Copy* copy) {
  if (copy->pins++ == 0) {
    SetHeld(copy, true);
  }
}

void TierSet::Unpin(Copy* copy) {
  CAIRN_CHECK(copy->pins > 0);
  if (--copy->pins > 0) {
    return;
  }
  if (copy->is_linked()) {
    SetHeld(copy, IsKept(*copy->image) && IsLast(*copy));
    records_.NoteIdle(copy->image);
  } else {
    SetHeld(copy, false);
    records_.ReturnCopy(copy);
  }
}

void TierSet::CountLease(Image* image, TierId tier, uint64_t bytes) {
  uint64_t& counted = image->leased[IndexOf(tier)];
  At(tier).figures.leased_bytes += bytes - counted;  // unsigned wraparound: adds or subtracts
  counted = bytes;
}

void TierSet::LeasePin(Image* image) {
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

void TierSet::LeaseUnpin(Image* image) {
  CAIRN_CHECK(image->lease_pins > 0);
  if (--image->lease_pins == 0) {
    for (const TierId tier : kReadOrder) {
      CountLease(image, tier, 0);
    }
  }
  Unpin(image);
}

bool TierSet::IsLeasedPast(uint64_t host_bytes_max) const {
  return leased_bytes() > host_bytes_max ||
         std::any_of(tiers_.begin(), tiers_.end(), [](const InTier& tier) {
           return tier.figures.leased_bytes > tier.lease_bytes_max;
         });
}

// --- Recency and eviction ------------------------------------------------------------------------

void TierSet::Touch(Block* block, absl::Time now, Use use) {
  const absl::Duration unused = now - absl::FromUnixSeconds(block->used_at_s);
  if (block->is_linked && unused >= kReuseMin) {
    reuse_seconds_.Observe(unused);
  }
  records_.Use(block);
  block->used_at_s =
      static_cast<uint32_t>(std::clamp<int64_t>(absl::ToUnixSeconds(now), 0, UINT32_MAX));
  block->is_used = true;
  block->may_demote = false;
  const bool is_first = block->is_fetched;
  block->is_fetched = false;
  const bool is_again = use == Use::kMatch || unused >= kReuseMin;
  if (is_first && use == Use::kGet && block->rank == kPlainRank) {
    SetRank(block, kFetchedRank);
  } else if (block->rank == kDemotedRank || (block->rank == kFetchedRank && is_again)) {
    SetRank(block, kPlainRank);  // the block is wanted again
  }
  write_back_.NoteUse(block);
}

void TierSet::NoteComputed(Block* block) {
  block->is_fetched = false;
  if (block->rank == kFetchedRank) {
    SetRank(block, kPlainRank);
  }
}

void TierSet::CountChildIn(const Block& child, TierId tier, int sign) {
  Block* parent = records_.At(child.parent);
  if (parent != nullptr && At(tier).traits.is_leaf_first) {
    records_.Awake(parent).in[IndexOf(tier)].child_count += static_cast<uint32_t>(sign);  // wraps
    Requeue(parent, tier);
    records_.NoteIdle(parent);
  }
}

void TierSet::Requeue(Block* block, TierId tier) {
  InTier& in_tier = At(tier);
  if (!in_tier.traits.is_leaf_first || !block->is_awake()) {
    return;
  }
  Order& order = OrderOf(in_tier, *block);
  const BlockInTier& in = block->awake->in[IndexOf(tier)];
  const bool is_queued = in.queue_index != BlockInTier::kNotQueued;
  const bool is_leaf = in.copy_count > 0 && in.child_count == 0;
  if (is_leaf && !is_queued) {
    order.recency->Add(block);
    order.held += in.held_count > 0 ? 1 : 0;
  } else if (!is_leaf && is_queued) {
    order.recency->Remove(block);
    order.held -= in.held_count > 0 ? 1 : 0;
  }
}

void TierSet::Unqueue(Block* block) {
  for (const TierId tier : kReadOrder) {
    const BlockInTier in = block->in(IndexOf(tier));
    if (in.queue_index != BlockInTier::kNotQueued) {
      Order& order = OrderOf(At(tier), *block);
      order.recency->Remove(block);
      order.held -= in.held_count > 0 ? 1 : 0;
    }
  }
}

void TierSet::SetOrphaned(Block* block, bool is_orphaned) {
  Unqueue(block);
  block->is_orphaned = is_orphaned;
  for (const TierId tier : kReadOrder) {
    Requeue(block, tier);
  }
}

void TierSet::SetRank(Block* block, uint8_t rank) {
  CAIRN_CHECK(block->is_linked && rank < kRankCount);
  if (block->rank == rank) {
    return;
  }
  Unqueue(block);
  block->rank = rank & 7U;
  for (const TierId tier : kReadOrder) {
    Requeue(block, tier);
  }
}

uint64_t TierSet::Evict(Block* block, TierId tier, EvictionReason reason) {
  CountEvicted(*block, tier, reason);
  InTier& in = At(tier);
  uint64_t freed = 0;
  ImageList images;
  for (const ImageRef& ref : records_.Wake(block)) {
    images.push_back(ref.image);
  }
  for (Image* image : images) {  // some images may be unlinked with their copies
    Copy* copy = image->copies[IndexOf(tier)];
    if (copy == nullptr) {
      continue;
    }
    CAIRN_CHECK(!copy->is_held);
    if (write_back_.IsDirty(*copy)) {
      ++in.evicted_dirty_images;
      in.evicted_dirty_bytes += copy->facts.image_bytes;
    }
    freed += UnlinkCopy(copy);
    UnlinkIfLost(image);
  }
  in.evicted_bytes[static_cast<size_t>(reason)] += freed;
  return freed;
}

void TierSet::Evict(Copy* copy, EvictionReason reason) {
  Image* image = copy->image;
  const Block* block = image->block;
  const TierId tier = copy->facts.tier;
  InTier& in = At(tier);
  // A block that was used since the write is written again, so that the next process finds it.
  if (in.traits.is_lasting && block->last_use <= copy->linked_at) {
    write_back_.SetSuppressed(image, Suppressed::kDropped);
  }
  in.evicted_bytes[static_cast<size_t>(reason)] += UnlinkCopy(copy);
  if (block->in(IndexOf(tier)).copy_count == 0) {
    CountEvicted(*block, tier, reason);
  }
  UnlinkIfLost(image);
}

void TierSet::CountEvicted(const Block& block, TierId tier, EvictionReason reason) {
  ++At(tier).evicted_blocks[static_cast<size_t>(reason)];
  At(tier).figures.evicted_for_index += IsForIndex(reason) ? 1 : 0;
  const absl::Duration unused = clock_.Now() - absl::FromUnixSeconds(block.used_at_s);
  At(tier).evicted_unused_seconds.Observe(std::max(unused, absl::ZeroDuration()));
}

// --- Statistics ----------------------------------------------------------------------------------

void TierSet::CountBlock(const Block& block, bool is_there) {
  const uint64_t one = is_there ? 1 : UINT64_MAX;  // unsigned wraparound: adds or subtracts
  figures_.block_count += one;
  const auto figures = figures_by_space_.try_emplace(block.name.space_id).first;
  figures->second.block_count += one;
  if (figures->second.block_count == 0) {
    figures_by_space_.erase(figures);
  }
}

IndexFigures TierSet::figures(uint64_t space_id) const {
  const auto found = figures_by_space_.find(space_id);
  return found == figures_by_space_.end() ? IndexFigures{} : found->second;
}

void TierSet::Count(const Copy& copy, int sign) {
  const uint64_t one = static_cast<uint64_t>(sign);  // unsigned wraparound: adds or subtracts
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

void TierSet::Report(MetricSink& sink) const {
  const auto gauge = [&sink](std::string_view name, std::string_view help, uint64_t value) {
    sink.AddGauge(name, help, {}, static_cast<double>(value));
  };
  gauge("cairn_blocks", "Blocks with at least one image.", figures_.block_count);
  gauge("cairn_images", "Images published.", figures_.image_count);
  gauge("cairn_image_bytes", "Bytes of the images published, in all tiers.", figures_.image_bytes);
  gauge("cairn_source_bytes",
        "Decoded size of the images, each counted once: the effective capacity in use.",
        figures_.source_bytes);
  uint64_t published = 0, unlinked = 0;
  for (const InTier& tier : tiers_) {
    published += tier.published_bytes_total;
    unlinked += tier.unlinked_bytes_total;
  }
  sink.AddGauge("cairn_compression_ratio",
                "Decoded size of the copies in all tiers, divided by their bytes; 0 when empty.",
                {},
                figures_.image_bytes == 0 ? 0.0
                                          : static_cast<double>(figures_.copies_source_bytes) /
                                                static_cast<double>(figures_.image_bytes));
  sink.AddCounter("cairn_image_published_bytes_total",
                  "Image bytes published; less cairn_image_unlinked_bytes_total they are "
                  "cairn_image_bytes.",
                  {}, published);
  sink.AddCounter("cairn_image_unlinked_bytes_total",
                  "Image bytes evicted, deleted, replaced or dropped.", {}, unlinked);
  const auto recipes = codecs::AllRecipes();
  for (size_t i = 0; i < recipes.size() + std::size(kRecipeFamilies); ++i) {
    const MetricLabel labels[] = {{"recipe", i < recipes.size()
                                                 ? codecs::FormatRecipe(recipes[i])
                                                 : kRecipeFamilies[i - recipes.size()]}};
    const RecipeFigures& figures = figures_by_recipe_[i];
    sink.AddGauge("cairn_recipe_images", "Images published, by recipe.", labels,
                  static_cast<double>(figures.image_count));
    sink.AddGauge("cairn_recipe_image_bytes", "Bytes of the images published, by recipe.", labels,
                  static_cast<double>(figures.image_bytes));
    sink.AddGauge("cairn_recipe_source_bytes", "Decoded size of the images, by recipe.", labels,
                  static_cast<double>(figures.source_bytes));
  }
  sink.AddHistogram("cairn_block_reuse_seconds",
                    "Idle time of blocks before they were used again. Accesses within two seconds, "
                    "such as a match and its get, are one use.",
                    {}, reuse_seconds_.Snapshot());
  for (const TierId id : kReadOrder) {
    if (At(id).exists) {
      ReportTier(id, sink);
    }
  }
}

void TierSet::ReportTier(TierId id, MetricSink& sink) const {
  const InTier& tier = At(id);
  const MetricLabel label[] = {{"tier", Name(id)}};
  const auto gauge = [&](std::string_view name, std::string_view help, uint64_t value) {
    sink.AddGauge(name, help, label, static_cast<double>(value));
  };
  gauge("cairn_tier_blocks", "Blocks with a copy in a tier.", tier.figures.block_count);
  gauge("cairn_tier_copies", "Copies of images in a tier.", tier.figures.copy_count);
  gauge("cairn_tier_image_bytes", "Bytes of the copies in a tier.", tier.figures.image_bytes);
  gauge("cairn_tier_pinned_bytes", "Bytes pinned by readers and leases, as allocated.",
        tier.figures.pinned_bytes);
  gauge("cairn_tier_leased_bytes",
        "Bytes of images that are leased, as allocated; deleted ones until their lease ends.",
        tier.figures.leased_bytes);
  sink.AddCounter("cairn_tier_lost_copies_total",
                  "Copies dropped because they were damaged or their device was out.", label,
                  tier.figures.lost_count);
  sink.AddCounter("cairn_dirty_evictions_total",
                  "Images evicted from a tier before they were in the SSD tier.", label,
                  tier.evicted_dirty_images);
  sink.AddCounter("cairn_dirty_evicted_bytes_total",
                  "Bytes of images evicted from a tier before they were in the SSD tier.", label,
                  tier.evicted_dirty_bytes);
  for (size_t i = 0; i < kEvictionReasonCount; ++i) {
    const MetricLabel labels[] = {{"tier", Name(id)},
                                  {"reason", Name(static_cast<EvictionReason>(i))}};
    sink.AddCounter("cairn_evictions_total", "Blocks evicted from a tier, by reason.", labels,
                    tier.evicted_blocks[i]);
    sink.AddCounter("cairn_evicted_bytes_total", "Bytes freed by eviction, as allocated.", labels,
                    tier.evicted_bytes[i]);
  }
  sink.AddHistogram("cairn_evicted_unused_seconds",
                    "Idle time of blocks when they were evicted from a tier.", label,
                    tier.evicted_unused_seconds.Snapshot());
}

}  // namespace cairn
