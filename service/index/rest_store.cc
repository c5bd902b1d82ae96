// SPDX-License-Identifier: Apache-2.0
#include "service/index/rest_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn {
namespace {

constexpr int kDeviceShift = 48, kPageShift = 12;
constexpr uint64_t kPageBytes = uint64_t{1} << kPageShift;
constexpr uint32_t kDevicesMax = 32;
static_assert(codecs::kImageBytesMax < uint64_t{1} << 27);
static_assert(codecs::kImagesPerBlockMax < 1 << 7);

uint64_t RoundedBytes(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Returns true if a RestingImage can describe the place.
bool FitsRestingImage(const TierExtent& extent) {
  const uint64_t page = extent.offset() % (uint64_t{1} << kDeviceShift) >> kPageShift;
  return extent.offset() % kPageBytes == 0 && page <= UINT32_MAX &&
         extent.offset() >> kDeviceShift < kDevicesMax &&
         extent.rounded_bytes() == RoundedBytes(extent.size_bytes());
}

uint64_t OffsetOf(const RestingImage& resting) {
  return uint64_t{resting.device} << kDeviceShift | uint64_t{resting.page} << kPageShift;
}

// Whether the block is the first of its run. Only then its own key says the run.
bool BeginsRun(const Block& block) {
  if (block.tokens == 0) {
    return false;  // it is missing
  }
  const uint64_t position = block.first_position / block.tokens;
  return proto::RunFirst(position) == position;
}

ImageFacts FactsOf(const Block& block, const ImageKind& kind) {
  return {.space_id = kind.space_id,
          .key = block.name.key,
          .first_position = block.first_position,
          .tokens = kind.tokens,
          .group = kind.group,
          .slice = kind.slice,
          .expires_unix_s = block.expires_unix_s,
          .source_bytes = kind.source_bytes};
}

ImageKind KindOf(const Image& image, const Copy& copy) {
  return {.space_id = image.facts.space_id,
          .source_bytes = image.facts.source_bytes,
          .side_object = copy.side_object.get(),
          .recipe = copy.facts.recipe,
          .slice = image.facts.slice,
          .tokens = image.facts.tokens,
          .group = image.facts.group};
}

}  // namespace

// --- Kinds ---------------------------------------------------------------------------------------

uint32_t ImageKinds::Ref(const ImageKind& kind, SideObjectRef& side_object) {
  const auto [found, is_new] = numbers_.try_emplace(kind, 0);
  if (is_new) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(entries_.size()));
      entries_.emplace_back();
    }
    found->second = free_.back();
    free_.pop_back();
    Entry& entry = entries_[found->second];
    entry.kind = kind;
    entry.side_object = std::move(side_object);
  }
  ++entries_[found->second].image_count;
  return found->second;
}

void ImageKinds::Unref(uint32_t number) {
  Entry& entry = entries_[number];
  CAIRN_CHECK(entry.image_count > 0);
  if (--entry.image_count > 0) {
    return;
  }
  entry.side_object.Reset();
  numbers_.erase(entry.kind);
  free_.push_back(number);
}

uint64_t ImageKinds::bytes() const {
  return entries_.capacity() * sizeof(Entry) + free_.capacity() * sizeof(uint32_t) +
         numbers_.capacity() * (sizeof(ImageKind) + sizeof(uint64_t) + 1);
}

// --- Blocks --------------------------------------------------------------------------------------

Block* RestStore::TakeBlock() {
  Block* block = blocks_.Take();
  block->parent = block->first_child = block->next_sibling = block->previous_sibling = kNoSlot;
  block->follower_count = 0;
  block->first_position = 0;
  block->tokens = 0;
  block->is_linked = block->is_used = false;
  block->is_orphaned = true;
  block->resting_count = 0;
  block->awake = nullptr;
  if (runs_.At(block->slot) != proto::kNoRun) runs_.Set(block->slot, proto::kNoRun);
  return block;
}

void RestStore::ReturnBlock(Block* block) {
  if (block->is_awake()) {
    awake_.Return(std::exchange(block->awake, nullptr));
  }
  blocks_.Return(block);
}

Block* RestStore::LinkedAt(uint32_t slot) {
  Block* block = blocks_.At(slot);
  return block->is_linked ? block : nullptr;
}

const Block* RestStore::LinkedAt(uint32_t slot) const {
  const Block* block = blocks_.At(slot);
  return block->is_linked ? block : nullptr;
}

// --- Images and copies ---------------------------------------------------------------------------

Image* RestStore::TakeImage(Block* block, const ImageFacts& facts) {
  Image* image = images_.Take();
  image->facts = facts;
  image->block = block;
  image->copies = {};
  image->is_writing = {};
  image->leased = {};
  image->pins = image->lease_pins = image->users = 0;
  image->suppressed = Suppressed::kNot;
  image->queue = QueueId::kNone;
  image->passed_over = 0;
  Awake(block).images.push_back({facts.group, facts.slice, image});
  return image;
}

void RestStore::ReturnIfUnused(Image* image) {
  if (image->users == 0 && image->block == nullptr) {
    images_.Return(image);
  }
}

Copy* RestStore::TakeCopy(Image* image) {
  Copy* copy = copies_.Take();
  copy->image = image;
  copy->pins = 0;
  copy->is_held = false;
  ++image->users;
  return copy;
}

void RestStore::ReturnCopy(Copy* copy) {
  Image* image = copy->image;
  copy->extent.Reset();
  copy->side_object.Reset();
  copies_.Return(copy);
  --image->users;
  ReturnIfUnused(image);
}

// --- Waking --------------------------------------------------------------------------------------

AwakeBlock& RestStore::Awake(Block* block) {
  if (block->is_awake()) {
    return *block->awake;
  }
  AwakeBlock* awake = awake_.Take();
  awake->put_count = awake->child_put_count = awake->followers_on_their_way = 0;
  awake->stale_children = awake->search = 0;
  awake->is_noted = false;
  awake->in = {};
  awake->images.clear();
  const size_t count = block->resting_count;
  const RestingImage one = count == 1 ? block->resting_one : RestingImage{};
  const std::unique_ptr<RestingImage[]> many(count > 1 ? block->resting_many : nullptr);
  block->resting_count = 0;
  block->awake = awake;
  for (size_t i = 0; i < count; ++i) {
    WakeImage(block, count == 1 ? one : many[i]);
  }
  resting_many_bytes_ -= count > 1 ? count * sizeof(RestingImage) : 0;
  NoteIdle(block);
  return *awake;
}

// Makes the records as TierSet counted them, so that no statistics change.
void RestStore::WakeImage(Block* block, const RestingImage& resting) {
  const ImageKind& kind = kinds_.At(resting.kind);
  const size_t lasting = IndexOf(*lasting_);
  Image* image = TakeImage(block, FactsOf(*block, kind));
  Copy* copy = TakeCopy(image);
  copy->facts = {.tier = *lasting_,
                 .recipe = kind.recipe,
                 .image_bytes = resting.image_bytes,
                 .directory_crc = resting.directory_crc};
  copy->extent = TierExtent(*lasting_tier_, OffsetOf(resting), resting.image_bytes,
                            RoundedBytes(resting.image_bytes));
  copy->side_object = kinds_.SideObjectOf(resting.kind).Share();
  copy->linked_at = block->last_use - (block->is_used ? 1 : 0);
  image->copies[lasting] = copy;
  ++block->awake->in[lasting].copy_count;
  kinds_.Unref(resting.kind);
}

// --- Going to rest -------------------------------------------------------------------------------

void RestStore::NoteIdle(Block* block) {
  if (block->is_awake() && !block->awake->is_noted && (lasting_.has_value() || !block->is_linked)) {
    block->awake->is_noted = true;
    idle_.push_back(block->slot);
  }
}

void RestStore::Rest() {
  for (const uint32_t slot : idle_) {
    Block* block = blocks_.At(slot);  // if the block was removed, this may be another block or none
    if (!block->is_awake()) {
      continue;
    }
    block->awake->is_noted = false;
    if (MayRest(*block)) {
      PutToRest(block);
    }
  }
  idle_.clear();
}

bool RestStore::MayRest(const Block& block) const {
  const AwakeBlock& awake = *block.awake;
  if (awake.put_count > 0 || awake.child_put_count > 0 || awake.stale_children > 0) {
    return false;
  }
  for (size_t i = 0; i < kTierCount; ++i) {
    const bool is_lasting = lasting_.has_value() && i == IndexOf(*lasting_);
    if (awake.in[i].child_count > 0 || (!is_lasting && awake.in[i].copy_count > 0)) {
      return false;
    }
  }
  if (!block.is_linked) {
    return true;
  }
  return lasting_.has_value() &&
         std::all_of(awake.images.begin(), awake.images.end(), [this](const ImageRef& ref) {
           const Copy* copy = ref.image->copies[IndexOf(*lasting_)];
           return copy != nullptr && copy->pins == 0 && ref.image->users == 1 &&
                  ref.image->queue != QueueId::kPending && FitsRestingImage(copy->extent);
         });
}

void RestStore::PutToRest(Block* block) {
  AwakeBlock* awake = block->awake;
  const size_t count = awake->images.size();
  RestingImage* many = count > 1 ? new RestingImage[count] : nullptr;
  block->is_used = false;
  for (size_t i = 0; i < count; ++i) {
    Image* image = awake->images[i].image;
    Copy* copy = image->copies[IndexOf(*lasting_)];
    const uint64_t offset = copy->extent.offset();
    RestingImage resting;
    resting.kind = kinds_.Ref(KindOf(*image, *copy), copy->side_object);
    resting.directory_crc = copy->facts.directory_crc;
    resting.page = static_cast<uint32_t>(offset % (uint64_t{1} << kDeviceShift) >> kPageShift);
    resting.image_bytes = static_cast<uint32_t>(copy->facts.image_bytes);
    resting.device = static_cast<uint32_t>(offset >> kDeviceShift);
    block->is_used |= block->last_use > copy->linked_at;
    copy->extent.Forget();
    copy->side_object.Reset();
    copies_.Return(copy);
    images_.Return(image);
    if (count == 1) {
      block->resting_one = resting;
    } else {
      many[i] = resting;
    }
  }
  awake->images.clear();
  if (count != 1) {
    block->awake = nullptr;
  }
  if (count > 1) {
    block->resting_many = many;
    resting_many_bytes_ += count * sizeof(RestingImage);
  }
  block->resting_count = count;
  awake_.Return(awake);
}

// --- Names ---------------------------------------------------------------------------------------

bool RestStore::SetNames(const Block& block, EngineNamesRef names) {
  CAIRN_CHECK(block.is_linked);
  if (names == nullptr) {
    return false;
  }
  const auto [entry, is_new] = names_.try_emplace(block.slot, std::move(names));
  names_bytes_ += is_new ? entry->second->bytes() : 0;
  return is_new;
}

void RestStore::ForgetNames(const Block& block) {
  const auto entry = names_.find(block.slot);
  if (entry != names_.end()) {
    names_bytes_ -= entry->second->bytes();
    names_.erase(entry);
  }
}

// --- Runs ----------------------------------------------------------------------------------------

void RestStore::EnterRun(const Block& block, uint64_t run) {
  if (!runs_.is_kept()) {
    return;
  }
  if (BeginsRun(block)) {
    run = proto::RunOf(block.name.key);
  } else if (run == proto::kNoRun && block.parent != kNoSlot) {
    run = runs_.At(block.parent);
  }
  if (run != proto::kNoRun) {
    runs_.Set(block.slot, run);
  }
}

std::optional<uint64_t> RestStore::LearnRun(const Block& block, Visits& visits) {
  uint64_t run = proto::kNoRun;
  const Block* before = &block;
  for (size_t climbed = 0; before != nullptr && climbed <= limits::kRunClimbMax; ++climbed) {
    if (!visits.Take()) {
      return std::nullopt;
    }
    run = BeginsRun(*before) ? proto::RunOf(before->name.key) : runs_.At(before->slot);
    if (run != proto::kNoRun) {
      break;
    }
    before = ParentOf(*before);
  }
  if (run == proto::kNoRun || before == &block) {
    return run;
  }
  for (const Block* learned = &block; learned != before; learned = ParentOf(*learned)) {
    runs_.Set(learned->slot, run);
  }
  return run;
}

// --- What may be asked of them -------------------------------------------------------------------

absl::Span<const ImageRef> RestStore::RefsOf(const Block& block, ImageRefs* scratch) const {
  if (!block.is_resting()) {
    return block.awake->images;
  }
  scratch->clear();
  for (size_t i = 0; i < block.resting_count; ++i) {
    const ImageKind& kind = kinds_.At(block.resting()[i].kind);
    scratch->push_back({kind.group, kind.slice, nullptr});
  }
  return *scratch;
}

RestStore::Brief RestStore::BriefOf(const Block& block, size_t place) const {
  if (block.is_resting()) {
    return {.tier = *lasting_, .image_bytes = block.resting()[place].image_bytes};
  }
  const Image& image = *block.awake->images[place].image;
  const Copy* in_host = image.copies[IndexOf(TierId::kHost)];
  const bool is_to_lease = image.lease_pins == 0 && in_host != nullptr;
  return {.tier = image.best().facts.tier,
          .image_bytes = image.best().facts.image_bytes,
          .lease_bytes = is_to_lease ? in_host->extent.rounded_bytes() : 0};
}

void RestStore::Describe(const Block& block, Described described) const {
  for (size_t i = 0; i < block.resting_count; ++i) {
    const RestingImage& resting = block.resting()[i];
    const ImageKind& kind = kinds_.At(resting.kind);
    described(FactsOf(block, kind),
              {.tier = *lasting_,
               .recipe = kind.recipe,
               .image_bytes = resting.image_bytes,
               .directory_crc = resting.directory_crc},
              0, kind.side_object);
  }
  if (block.is_awake()) {
    for (const ImageRef& ref : block.awake->images) {
      const Copy& copy = ref.image->best();
      described(ref.image->facts, copy.facts, ref.image->pins + copy.pins, copy.side_object.get());
    }
  }
}

bool RestStore::RestsOutside(const Block& block, uint64_t begin, uint64_t end) const {
  if (!block.is_resting()) {
    return false;
  }
  const RestingImage* images = block.resting();
  return std::none_of(images, images + block.resting_count, [&](const RestingImage& resting) {
    const uint64_t offset = OffsetOf(resting);
    return offset >= begin && offset < end;
  });
}

uint64_t RestStore::PartsOf(const Block& block) const {
  uint64_t parts = 0;
  for (const RestingImage& resting : std::span(block.resting(), block.resting_count)) {
    parts |= lasting_tier_->traits().PartOf(OffsetOf(resting));
  }
  return parts;
}

bool RestStore::HasCopiesIn(const Block& block, TierId tier) const {
  return block.is_resting() ? tier == *lasting_ : block.in(IndexOf(tier)).copy_count > 0;
}

bool RestStore::IsUsed(const Block& block) const {
  if (block.is_resting()) return block.is_used;
  for (const ImageRef& ref : block.awake->images) {
    for (const Copy* copy : ref.image->copies) {
      if (copy != nullptr && block.last_use > copy->linked_at) return true;
    }
  }
  return false;
}

uint64_t RestStore::bytes() const {
  return blocks_.bytes() + awake_.bytes() + images_.bytes() + copies_.bytes() + kinds_.bytes() +
         resting_many_bytes_ + names_bytes_ + runs_.bytes() + idle_.capacity() * sizeof(uint32_t);
}

}  // namespace cairn
