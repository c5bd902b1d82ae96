// SPDX-License-Identifier: Apache-2.0
// What goes over many blocks: in steps, so that the lock is never held for long.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "service/index/block_index.h"
#include "service/index/cover.h"
#include "service/limits.h"

namespace cairn {
namespace {

// Blocks of which every image is looked at or unlinked: a thousand images a hold.
constexpr size_t kKeysPerStep = limits::kVisitsPerHoldMax / codecs::kImagesPerBlockMax;
constexpr uint32_t kSlotsPerStep = limits::kVisitsPerHoldMax;

bool IsComplete(absl::Span<const ImageRef> refs, absl::Span<const WantedGroup> wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [refs](const WantedGroup& group) {
    return FindCover(refs, group.group, group.slice, nullptr);
  });
}

}  // namespace

std::vector<bool> BlockIndex::Contains(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                                       absl::Span<const WantedGroup> wanted) const {
  std::vector<bool> answers;
  answers.reserve(keys.size());
  ImageRefs scratch;
  while (answers.size() < keys.size()) {
    const size_t end = std::min(keys.size(), answers.size() + kKeysPerStep);
    mutex_.LetWaitersPass();
    const MutexLock lock(mutex_);
    for (size_t i = answers.size(); i < end; ++i) {
      const Block* block = table_.FindUnexpired({space_id, keys[i]});
      answers.push_back(block != nullptr && IsComplete(table_.RefsOf(*block, &scratch), wanted));
    }
  }
  return answers;
}

std::vector<BlockIndex::Where> BlockIndex::Locate(uint64_t space_id,
                                                  absl::Span<const proto::BlockKey> keys,
                                                  absl::Span<const WantedGroup> wanted) const {
  std::vector<Where> answers;
  answers.reserve(keys.size() * wanted.size());
  ImageRefs scratch;
  ImagePlaces places;
  const auto where = [&](const Block* block,
                         const WantedGroup& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (block == nullptr ||
        !FindCover(table_.RefsOf(*block, &scratch), group.group, group.slice, &places)) {
      return Where::kNowhere;
    }
    return std::all_of(places.begin(), places.end(),
                       [&](uint8_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                         return table_.BriefOf(*block, place).tier == TierId::kHost;
                       })
               ? Where::kInMemory
               : Where::kCold;
  };
  for (size_t first = 0; first < keys.size(); first += kKeysPerStep) {
    mutex_.LetWaitersPass();
    const MutexLock lock(mutex_);
    for (const proto::BlockKey& key : keys.subspan(first, kKeysPerStep)) {
      const Block* block = table_.FindUnexpired({space_id, key});
      for (const WantedGroup& group : wanted) {
        answers.push_back(where(block, group));
      }
    }
  }
  return answers;
}

uint32_t BlockIndex::Delete(uint64_t space_id, absl::Span<const proto::BlockKey> keys) {
  uint32_t deleted = 0;
  for (size_t first = 0; first < keys.size(); first += kKeysPerStep) {
    mutex_.LetWaitersPass();
    const Hold hold(*this);
    for (const proto::BlockKey& key : keys.subspan(first, kKeysPerStep)) {
      if (Block* block = table_.Find({space_id, key}); block != nullptr) {
        table_.UnlinkBlock(block);
        ++deleted;
      }
    }
  }
  return deleted;
}

uint64_t BlockIndex::Invalidate(uint64_t space_id) {
  uint64_t deleted = 0;
  uint32_t slot_end = 0;
  {
    const MutexLock lock(mutex_);
    slot_end = table_.slot_count();
  }
  for (uint32_t first = 0; first < slot_end; first += kKeysPerStep) {
    mutex_.LetWaitersPass();
    const Hold hold(*this);
    for (uint32_t slot = first; slot < std::min<size_t>(slot_end, first + kKeysPerStep); ++slot) {
      Block* block = table_.AtSlot(slot);
      if (block != nullptr && block->name.space_id == space_id) {
        table_.UnlinkBlock(block);
        ++deleted;
      }
    }
  }
  return deleted;
}

bool BlockIndex::CollectExpired(uint64_t* cursor) {
  mutex_.LetWaitersPass();
  const Hold hold(*this);
  if (table_.expiring_count() == 0) {
    return false;
  }
  const uint64_t end = std::min<uint64_t>(table_.slot_count(), *cursor + limits::kVisitsPerHoldMax);
  for (size_t dropped = 0; *cursor < end && dropped < kKeysPerStep; ++*cursor) {
    Block* block = table_.AtSlot(static_cast<uint32_t>(*cursor));
    if (block != nullptr && table_.IsExpired(*block)) {
      table_.DropExpired(block);
      ++dropped;
    }
  }
  return *cursor < table_.slot_count();
}

uint64_t BlockIndex::TakeOut(TierId tier) {
  {
    const MutexLock lock(mutex_);
    table_.SetOut(tier, true);  // what is published from now on is elsewhere
  }
  return LoseIn(tier, 0, UINT64_MAX);
}

void BlockIndex::LoseCopies(TierId tier, uint64_t begin, uint64_t end) { LoseIn(tier, begin, end); }

uint64_t BlockIndex::LoseIn(TierId tier, uint64_t begin, uint64_t end) {
  uint32_t slot_end = 0;
  {
    const MutexLock lock(mutex_);
    slot_end = table_.slot_count();
  }
  uint64_t count = 0;
  for (uint32_t first = 0; first < slot_end; first += kKeysPerStep) {
    mutex_.LetWaitersPass();
    const Hold hold(*this);
    for (uint32_t slot = first; slot < std::min<size_t>(slot_end, first + kKeysPerStep); ++slot) {
      Block* block = table_.AtSlot(slot);
      if (block != nullptr && table_.HasCopiesIn(*block, tier)) {
        table_.LoseIn(block, tier, begin, end);
        ++count;
      }
    }
  }
  return count;
}

void BlockIndex::PutBack(TierId tier) {
  const MutexLock lock(mutex_);
  table_.SetOut(tier, false);
}

std::optional<Uncopied> BlockIndex::TakeUncopied() {
  std::optional<Uncopied> taken;
  int searches = 0;
  uint32_t round = 0;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    round = round == 0 ? ++uncopied_round_ : round;
    Image* image = table_.NextUncopied(round, visits);
    if (image == nullptr) {
      return !visits.is_spent() || ++searches == limits::kUncopiedSearchesMax;
    }
    const TierId tier = *table_.lasting();
    taken.emplace();
    Block* parent = table_.ParentOf(*image->block);
    taken->parent = parent == nullptr ? proto::BlockKey{} : parent->name.key;
    const Copy& source = *image->copies[IndexOf(TierId::kHost)];
    taken->is_used = image->block->last_use > source.linked_at;
    taken->source = PinCopyLocked(*image->copies[IndexOf(TierId::kHost)]);
    CAIRN_CHECK(table_.BeginCopy(image, tier));
    taken->writer = CopyWriter(this, image, tier);
    if (parent != nullptr && table_.HasCopiesIn(*parent, tier)) {
      for (const ImageRef& ref : table_.Wake(parent)) {
        if (Copy* copy = ref.image->copies[IndexOf(tier)]; copy != nullptr) {
          taken->parent_copy = PinCopyLocked(*copy);
          break;
        }
      }
    }
    return true;
  });
  return taken;
}

void BlockIndex::LetGo(CopyWriter writer) {
  {
    const Hold hold(*this);
    table_.SetLetGo(writer.image_, LetGo::kWithheld);
  }
  writer.Reset();
}

WriteDownProgress BlockIndex::Expedite(const BlockName& name, uint16_t group,
                                       const codecs::Slice& slice) {
  WriteDownProgress progress;
  InHolds([&](Visits& visits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    progress = table_.Expedite(name, group, slice, visits);
    return true;
  });
  return progress;
}

uint64_t BlockIndex::lost_count(TierId tier) const {
  const MutexLock lock(mutex_);
  return table_.lost_count(tier);
}

uint64_t BlockIndex::uncopied_count() const {
  const MutexLock lock(mutex_);
  return table_.uncopied_count();
}

bool BlockIndex::Walk(uint64_t space_id, uint64_t* cursor, CopyPins* pins) {
  pins->clear();
  const MutexLock lock(mutex_);
  const uint64_t end = std::min<uint64_t>(table_.slot_count(), *cursor + kKeysPerStep);
  for (; *cursor < end; ++*cursor) {
    Block* block = table_.AtSlot(static_cast<uint32_t>(*cursor));
    if (block == nullptr || block->is_resting() ||
        (space_id != 0 && block->name.space_id != space_id)) {
      continue;
    }
    for (const ImageRef& ref : block->awake->images) {
      if (Copy* copy = ref.image->copies[IndexOf(TierId::kHost)]; copy != nullptr) {
        pins->push_back(PinCopyLocked(*copy));
      }
    }
  }
  return *cursor < table_.slot_count();
}

bool BlockIndex::WalkTier(TierId tier, uint64_t space_id, uint64_t* cursor, CopyPin* pin) {
  pin->Reset();
  const Hold hold(*this);
  uint64_t slot = *cursor / codecs::kImagesPerBlockMax;
  size_t place = *cursor % codecs::kImagesPerBlockMax;  // in the block's images
  const uint64_t end = std::min<uint64_t>(table_.slot_count(), slot + kSlotsPerStep);
  for (; slot < end && pin->is_empty(); place = 0, ++slot) {
    Block* block = table_.AtSlot(static_cast<uint32_t>(slot));
    if (block == nullptr || (space_id != 0 && block->name.space_id != space_id) ||
        !table_.HasCopiesIn(*block, tier)) {
      continue;
    }
    const ImageRefs& images = table_.Wake(block);
    for (; place < images.size(); ++place) {
      if (Copy* copy = images[place].image->copies[IndexOf(tier)]; copy != nullptr) {
        *cursor = slot * codecs::kImagesPerBlockMax + place + 1;
        *pin = PinCopyLocked(*copy);
        return true;
      }
    }
  }
  *cursor = slot * codecs::kImagesPerBlockMax;
  return slot < table_.slot_count();
}

CopyPins BlockIndex::TakePending(size_t count) {
  CAIRN_CHECK(count <= limits::kVisitsPerHoldMax);
  CopyPins pins;
  const MutexLock lock(mutex_);
  while (pins.size() < count && table_.pending_count() > 0) {
    Image* image = table_.FirstPending();
    table_.ClearPending(image);
    pins.push_back(PinCopyLocked(*image->copies[IndexOf(TierId::kHost)]));
  }
  return pins;
}

bool BlockIndex::TakePending(const CopyPin& pin) {
  CAIRN_CHECK(pin.index_ == this);
  const MutexLock lock(mutex_);
  const bool is_pending = pin.copy_->is_linked && pin.copy_->image->is_encode_pending;
  table_.ClearPending(pin.copy_->image);
  return is_pending;
}

std::optional<BlockName> BlockIndex::BlockBefore(const CopyPin& pin) const {
  CAIRN_CHECK(pin.index_ == this);
  const MutexLock lock(mutex_);
  const Block* block = pin.copy_->is_linked ? pin.copy_->image->block : nullptr;
  const Block* parent = block == nullptr ? nullptr : table_.ParentOf(*block);
  if (parent == nullptr) {
    return std::nullopt;
  }
  return parent->name;
}

void BlockIndex::PutBackPending(const CopyPin& pin) {
  CAIRN_CHECK(pin.index_ == this);
  const MutexLock lock(mutex_);
  if (pin.copy_->is_linked) {
    table_.SetPending(pin.copy_->image);
  }
}

std::vector<ListedBlock> BlockIndex::List(uint64_t space_id,
                                          const std::optional<proto::BlockKey>& after, size_t limit,
                                          absl::Span<const WantedGroup> whole,
                                          bool* has_more) const {
  CAIRN_CHECK(limit > 0 && limit <= limits::kListBlocksMax);
  // The smallest keys beyond `after`, one more than asked for, as a heap with the largest on top.
  std::vector<proto::BlockKey> keys;
  bool is_over = false;
  for (uint32_t first = 0; !is_over; first += kSlotsPerStep) {
    mutex_.LetWaitersPass();
    const MutexLock lock(mutex_);
    const uint32_t end = std::min(table_.slot_count(), first + kSlotsPerStep);
    is_over = end == table_.slot_count();
    for (uint32_t slot = first; slot < end; ++slot) {
      const Block* block = table_.AtSlot(slot);
      if (block == nullptr || block->name.space_id != space_id ||
          (after.has_value() && block->name.key <= *after)) {
        continue;
      }
      if (keys.size() > limit) {
        if (block->name.key >= keys.front()) {
          continue;
        }
        std::pop_heap(keys.begin(), keys.end());
        keys.pop_back();
      }
      keys.push_back(block->name.key);
      std::push_heap(keys.begin(), keys.end());
    }
  }
  std::sort_heap(keys.begin(), keys.end());
  // A block that moved to another slot meanwhile may have been seen twice.
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  *has_more = keys.size() > limit;
  keys.resize(std::min(keys.size(), limit));

  std::vector<ListedBlock> blocks;
  ImageRefs scratch;
  for (size_t first = 0; first < keys.size(); first += kKeysPerStep) {
    mutex_.LetWaitersPass();
    const MutexLock lock(mutex_);
    for (size_t i = first; i < std::min(keys.size(), first + kKeysPerStep); ++i) {
      const Block* block = table_.FindUnexpired({space_id, keys[i]});
      if (block == nullptr) {
        continue;
      }
      const Block* parent = table_.ParentOf(*block);
      ListedBlock listed = {.key = block->name.key,
                            .parent = parent == nullptr ? proto::BlockKey{} : parent->name.key,
                            .first_position = block->first_position,
                            .is_complete = IsComplete(table_.RefsOf(*block, &scratch), whole),
                            .child_count = block->child_count(),
                            .idle = clock_.Now() - absl::FromUnixSeconds(block->used_at_s),
                            .images = {}};
      table_.Describe(*block, [&](const ImageFacts& facts, const CopyFacts& copy,
                                  uint32_t pin_count, const SideObject* side_object) {
        ListedImage& image =
            listed.images.emplace_back(ListedImage{facts, copy, pin_count, std::nullopt});
        if (side_object != nullptr) {
          image.side_object = side_object->id();
        }
      });
      blocks.push_back(std::move(listed));
    }
  }
  return blocks;
}

}  // namespace cairn
