// SPDX-License-Identifier: Apache-2.0
#include "service/index/write_back_queue.h"

#include <algorithm>

namespace cairn {

// --- ImageQueue ----------------------------------------------------------------------------------

void ImageQueue::PushBack(Image* image) {
  image->queue_previous = back_;
  (back_ == nullptr ? front_ : back_->queue_next) = image;
  back_ = image;
  image->queue = id_;
  ++count_;
}

void ImageQueue::PushFront(Image* image) {
  image->queue_next = front_;
  (front_ == nullptr ? back_ : front_->queue_previous) = image;
  front_ = image;
  image->queue = id_;
  ++count_;
}

void ImageQueue::Remove(Image* image) {
  Image* previous = image->queue_previous;
  Image* next = image->queue_next;
  (previous == nullptr ? front_ : previous->queue_next) = next;
  (next == nullptr ? back_ : next->queue_previous) = previous;
  image->queue_previous = image->queue_next = nullptr;
  image->queue = QueueId::kNone;
  --count_;
}

// --- Filing --------------------------------------------------------------------------------------

WriteBackQueue::WriteBackQueue(RestStore& records)
    : records_(records),
      image_bytes_max_(
          records.lasting_tier() == nullptr ? 0 : records.lasting_tier()->image_bytes_max()) {}

bool WriteBackQueue::IsMissing(const Image& image) const {
  const size_t t = IndexOf(*records_.lasting());
  const Copy* source = image.copies[IndexOf(TierId::kHost)];
  return source != nullptr && source->facts.image_bytes <= image_bytes_max_ &&
         image.copies[t] == nullptr && !image.is_writing[t];
}

void WriteBackQueue::Refresh(Image* image) {
  const bool is_in_host =
      image->block != nullptr && image->copies[IndexOf(TierId::kHost)] != nullptr;
  if (!is_in_host) {
    pending_.RemoveIfThere(image);  // its raw bytes are gone
  }
  if (!records_.lasting().has_value() || pending_.Has(*image)) {
    return;
  }
  const bool is_uncopied = is_in_host && IsMissing(*image) && image->suppressed == Suppressed::kNot;
  const bool is_clean = is_in_host && image->copies[IndexOf(*records_.lasting())] != nullptr;
  if (!is_uncopied) {
    uncopied_.RemoveIfThere(image);
  }
  if (!is_clean) {
    clean_.RemoveIfThere(image);
  }
  if (is_uncopied && !uncopied_.Has(*image)) {
    uncopied_.PushBack(image);
  }
  if (is_clean && !clean_.Has(*image)) {
    clean_.PushBack(image);
  }
}

void WriteBackQueue::SetPending(Image* image) {
  if (pending_.Has(*image)) {
    return;
  }
  for (ImageQueue* queue : {&uncopied_, &clean_}) {
    queue->RemoveIfThere(image);
  }
  pending_.PushBack(image);
  Refresh(image);
}

void WriteBackQueue::ClearPending(Image* image) {
  pending_.RemoveIfThere(image);
  Refresh(image);
}

// --- Images that the persistent tier lacks -------------------------------------------------------

Image* WriteBackQueue::WaitsFor(const Block& parent) {
  if (!parent.is_awake()) {
    return nullptr;
  }
  for (const ImageRef& ref : parent.awake->images) {
    Image* image = ref.image;
    if (!IsMissing(*image)) {
      continue;
    }
    SetSuppressed(image, Suppressed::kNot);
    return image;
  }
  return nullptr;
}

bool WriteBackQueue::Hurry(Image* image) {
  const Copy* source = image->copies[IndexOf(TierId::kHost)];
  if (image->is_writing[IndexOf(*records_.lasting())] || pending_.Has(*image)) {
    return true;
  }
  if (source == nullptr || source->facts.image_bytes > image_bytes_max_) {
    return false;
  }
  records_.Use(image->block);  // write it even if the write budget is low
  SetSuppressed(image, Suppressed::kNot);
  uncopied_.Remove(image);
  uncopied_.PushFront(image);
  return true;
}

WriteBackProgress WriteBackQueue::Expedite(const Block& block, uint16_t group,
                                           const codecs::Slice& slice, Visits& visits) {
  using State = WriteBackProgress::State;
  const auto is_wanted = [&](const ImageRef& ref) {
    return ref.group == group && ref.slice.Overlaps(slice);
  };
  if (block.is_awake() &&
      std::none_of(block.awake->images.begin(), block.awake->images.end(), is_wanted)) {
    return {.state = State::kGone, .block = block.name};
  }
  uint64_t parts = 0;
  // The loop ends, because a chain has no cycle.
  for (const Block* at = &block; at != nullptr; at = records_.ParentOf(*at)) {
    const bool has_images = at->is_awake() && !at->awake->images.empty();
    if (!visits.Take(1 + (has_images ? at->awake->images.size() : 0))) {
      parts = kAllParts;
      break;
    }
    if (at->is_resting()) {
      parts |= records_.PartsOf(*at);
      continue;  // the persistent tier has the whole block
    }
    if (!has_images) {
      return {.state = State::kOnItsWay, .block = at->name};
    }
    bool is_missing = false;
    for (const ImageRef& ref : at->awake->images) {
      if (const Copy* copy = ref.image->copies[IndexOf(*records_.lasting())]; copy != nullptr) {
        parts |= records_.lasting_tier()->traits().PartOf(copy->extent.offset());
        continue;
      }
      if (at == &block && !is_wanted(ref)) {
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
  return {.state = State::kThere, .block = block.name, .parts = parts};
}

Image* WriteBackQueue::Next(uint32_t round, Visits& visits) {
  // The loop ends when `visits` are spent or all images were skipped. Each iteration skips one or
  // moves up a chain, which has no cycle.
  for (;;) {
    Image* image = uncopied_.front();
    if (image == nullptr || image->passed_over == round) {
      return nullptr;
    }
    Block* parent = records_.ParentOf(*image->block);
    const size_t looked_at =
        parent == nullptr || !parent->is_awake() ? 0 : parent->awake->images.size();
    if (!visits.Take(1 + looked_at)) {
      return nullptr;
    }
    const bool is_used = image->block->last_use > image->copies[IndexOf(TierId::kHost)]->linked_at;
    if (parent != nullptr && HasWithheld(*parent)) {
      if (is_used) {  // the block that it follows counts as used, too
        records_.Use(parent);
        WantAgain(parent);
      } else {
        parent = nullptr;  // the parent may be skipped as well
      }
    }
    Image* first = parent == nullptr ? nullptr : WaitsFor(*parent);
    if (first == nullptr) {
      return image;
    }
    if (uncopied_.Has(*first) && first->passed_over != round) {
      uncopied_.Remove(first);
      uncopied_.PushFront(first);
    } else {  // the parent itself must wait
      image->passed_over = round;
      uncopied_.Remove(image);
      uncopied_.PushBack(image);
    }
  }
}

// --- Suppressed images ---------------------------------------------------------------------------

void WriteBackQueue::SetSuppressed(Image* image, Suppressed suppressed) {
  if (image->block != nullptr && suppressed != Suppressed::kNot) {
    image->block->has_suppressed = true;  // so that its next use is noticed
  }
  image->suppressed = suppressed;
  Refresh(image);
}

void WriteBackQueue::WantAgain(Block* block) {
  block->has_suppressed = false;
  if (!block->is_awake()) {
    return;
  }
  for (const ImageRef& ref : block->awake->images) {
    SetSuppressed(ref.image, Suppressed::kNot);
  }
}

bool WriteBackQueue::HasWithheld(const Block& block) {
  return block.has_suppressed && block.is_awake() &&
         std::any_of(
             block.awake->images.begin(), block.awake->images.end(),
             [](const ImageRef& ref) { return ref.image->suppressed == Suppressed::kWithheld; });
}

// --- Images that the host tier could drop --------------------------------------------------------

bool WriteBackQueue::HasDirty(const Block& block) const {
  return block.is_awake() && std::any_of(block.awake->images.begin(), block.awake->images.end(),
                                         [this](const ImageRef& ref) {
                                           const Copy* copy =
                                               ref.image->copies[IndexOf(TierId::kHost)];
                                           return copy != nullptr && IsDirty(*copy);
                                         });
}

Block* WriteBackQueue::OldestClean(uint8_t rank_max, Visits& visits) {
  constexpr size_t kHost = IndexOf(TierId::kHost);
  for (uint64_t left = clean_.count(); left > 0; --left) {
    Image* image = clean_.front();
    Block* block = image->block;
    if (!visits.Take(block->awake->images.size())) {
      return nullptr;
    }
    Copy& copy = *image->copies[kHost];
    if (block->last_use > copy.linked_at) {  // used since the write: it is queued again
      copy.linked_at = records_.uses();
    } else if (block->in(kHost).held_count == 0 && block->rank <= rank_max && !HasDirty(*block)) {
      return block;
    }
    clean_.Remove(image);
    clean_.PushBack(image);
  }
  return nullptr;
}

}  // namespace cairn
