// SPDX-License-Identifier: Apache-2.0
// Images that have no copy in the lasting tier yet: they wait in the order published.
#include <algorithm>

#include "service/index/block_table.h"

namespace cairn {

bool BlockTable::IsMissing(const Image& image) const {
  const size_t t = IndexOf(*lasting_);
  const Copy* source = image.copies[IndexOf(TierId::kHost)];
  return source != nullptr && source->facts.image_bytes <= lasting_image_bytes_max_ &&
         image.copies[t] == nullptr && !image.is_writing[t];
}

void BlockTable::RefreshQueues(Image* image) {
  const bool is_in_host =
      image->block != nullptr && image->copies[IndexOf(TierId::kHost)] != nullptr;
  if (!is_in_host) {
    pending_.RemoveIfThere(image);  // nothing of it is left that could be encoded
  }
  if (!lasting_.has_value() || image->is_encode_pending) {
    return;
  }
  const bool is_uncopied = is_in_host && IsMissing(*image) && image->let_go == LetGo::kNot;
  const bool is_clean = is_in_host && image->copies[IndexOf(*lasting_)] != nullptr;
  if (!is_uncopied) {
    uncopied_.RemoveIfThere(image);
  }
  if (!is_clean) {
    clean_.RemoveIfThere(image);
  }
  if (!image->is_uncopied && is_uncopied) {
    uncopied_.PushBack(image);
  }
  if (!image->is_clean && is_clean) {
    clean_.PushBack(image);
  }
}

bool BlockTable::HasDirty(const Block& block) const {
  return block.is_awake() && std::any_of(block.awake->images.begin(), block.awake->images.end(),
                                         [this](const ImageRef& ref) {
                                           const Copy* copy =
                                               ref.image->copies[IndexOf(TierId::kHost)];
                                           return copy != nullptr && IsDirty(*copy);
                                         });
}

Block* BlockTable::OldestClean(Visits& visits) {
  constexpr size_t kHost = IndexOf(TierId::kHost);
  for (uint64_t left = clean_.count(); left > 0; --left) {
    Image* image = clean_.front();
    Block* block = image->block;
    if (!visits.Take(block->awake->images.size())) {
      return nullptr;
    }
    Copy& copy = *image->copies[kHost];
    if (block->last_use > copy.linked_at) {  // used since: it is queued once more
      copy.linked_at = uses_;
    } else if (block->in(kHost).held_count == 0 && !HasDirty(*block)) {
      return block;
    }
    clean_.Remove(image);
    clean_.PushBack(image);
  }
  return nullptr;
}

Image* BlockTable::WaitsFor(const Block& parent) {
  if (!parent.is_awake()) {
    return nullptr;
  }
  for (const ImageRef& ref : parent.awake->images) {
    Image* image = ref.image;
    if (!IsMissing(*image)) {
      continue;
    }
    SetLetGo(image, LetGo::kNot);
    return image;
  }
  return nullptr;
}

void BlockTable::SetLetGo(Image* image, LetGo let_go) {
  if (image->block != nullptr && let_go != LetGo::kNot) {
    image->block->has_let_go = true;  // so that its next use is seen
  }
  image->let_go = let_go;
  RefreshQueues(image);
}

void BlockTable::WantAgain(Block* block) {
  block->has_let_go = false;
  if (!block->is_awake()) {
    return;
  }
  for (const ImageRef& ref : block->awake->images) {
    SetLetGo(ref.image, LetGo::kNot);
  }
}

bool BlockTable::HasWithheld(const Block& block) {
  return block.has_let_go && block.is_awake() &&
         std::any_of(block.awake->images.begin(), block.awake->images.end(),
                     [](const ImageRef& ref) { return ref.image->let_go == LetGo::kWithheld; });
}

bool BlockTable::Hurry(Image* image) {
  const Copy* source = image->copies[IndexOf(TierId::kHost)];
  if (image->is_writing[IndexOf(*lasting_)] || image->is_encode_pending) {
    return true;
  }
  if (source == nullptr || source->facts.image_bytes > lasting_image_bytes_max_) {
    return false;
  }
  image->block->last_use = ++uses_;  // a short write budget is no reason to let it go
  SetLetGo(image, LetGo::kNot);
  uncopied_.Remove(image);
  uncopied_.PushFront(image);
  return true;
}

WriteDownProgress BlockTable::Expedite(const BlockName& name, uint16_t group,
                                       const codecs::Slice& slice, Visits& visits) {
  using State = WriteDownProgress::State;
  if (!lasting_.has_value() || At(*lasting_).is_out) {
    return {.state = State::kNoTier, .block = {}};
  }
  const auto is_wanted = [&](const ImageRef& ref) {
    return ref.group == group && ref.slice.Overlaps(slice);
  };
  const Block* block = Find(name);
  if (block == nullptr) {
    return {.state = State::kGone, .block = name};
  }
  if (block->is_awake() &&
      std::none_of(block->awake->images.begin(), block->awake->images.end(), is_wanted)) {
    return {.state = State::kGone, .block = name};
  }
  uint64_t parts = 0;
  // Ends: a chain is no circle.
  for (const Block* at = block; at != nullptr; at = ParentOf(*at)) {
    const bool has_images = at->is_awake() && !at->awake->images.empty();
    if (!visits.Take(1 + (has_images ? at->awake->images.size() : 0))) {
      parts = kAllParts;
      break;
    }
    if (at->is_resting()) {
      parts |= PartsOf(*at);
      continue;  // the lasting tier has all of it
    }
    if (!has_images) {
      return {.state = State::kOnItsWay, .block = at->name};
    }
    bool is_missing = false;
    for (const ImageRef& ref : at->awake->images) {
      if (const Copy* copy = ref.image->copies[IndexOf(*lasting_)]; copy != nullptr) {
        parts |= At(*lasting_).traits.PartOf(copy->extent.offset());
        continue;
      }
      if (at == block && !is_wanted(ref)) {
        continue;
      }
      is_missing = true;
      if (!Hurry(ref.image)) {
        return {.state = State::kTooLarge, .block = at->name};
      }
    }
    if (is_missing) {
      return {.state = State::kOnItsWay, .block = at->name};
    }
  }
  return {.state = State::kThere, .block = name, .parts = parts};
}

Image* BlockTable::NextUncopied(uint32_t round, Visits& visits) {
  if (!lasting_.has_value() || At(*lasting_).is_out) {
    return nullptr;
  }
  // Ends: `visits`, or all were passed over. Each step passes one over or climbs up a chain, which
  // is no circle.
  for (;;) {
    Image* image = uncopied_.front();
    if (image == nullptr || image->passed_over == round) {
      return nullptr;
    }
    Block* parent = ParentOf(*image->block);
    const size_t looked_at =
        parent == nullptr || !parent->is_awake() ? 0 : parent->awake->images.size();
    if (!visits.Take(1 + looked_at)) {
      return nullptr;
    }
    const bool is_used = image->block->last_use > image->copies[IndexOf(TierId::kHost)]->linked_at;
    if (parent != nullptr && HasWithheld(*parent)) {
      if (is_used) {  // what it follows is used with it
        parent->last_use = ++uses_;
        WantAgain(parent);
      } else {
        parent = nullptr;  // it may be let go as well
      }
    }
    Image* first = parent == nullptr ? nullptr : WaitsFor(*parent);
    if (first == nullptr) {
      return image;
    }
    if (first->is_uncopied && first->passed_over != round) {
      uncopied_.Remove(first);
      uncopied_.PushFront(first);
    } else {  // what it waits for waits itself
      image->passed_over = round;
      uncopied_.Remove(image);
      uncopied_.PushBack(image);
    }
  }
}

}  // namespace cairn
