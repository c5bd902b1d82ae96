// SPDX-License-Identifier: Apache-2.0
#pragma once
// The write-back queue: the images that the persistent tier lacks, in the order of publication. It
// also has the images that the host tier can drop because the persistent tier has them. Part of
// BlockIndex.
//
// State: three queues of images, and which images write-back skips (Suppressed).
//
// Invariants, which hold for an image since its last Refresh():
//
// - An image is in at most one queue, and only while the host tier has a copy.
// - Pending: its encoding is pending. It enters another queue only after it is encoded.
// - Uncopied: the persistent tier has no copy and accepts the image, no write of it is running, and
//   it is not suppressed.
// - Clean: both the host tier and the persistent tier have a copy.
// - A block with a suppressed image has Block::has_suppressed set. So its next use is noticed, and
//   ends the suppression.
// - Without a persistent tier, only the queue of pending encodings has images.
//
// Thread-safety: Thread-compatible (the index's lock).

#include <cstddef>
#include <cstdint>
#include <optional>

#include "codecs/types/shape.h"
#include "service/index/block.h"
#include "service/index/rest_store.h"
#include "service/tier/block_name.h"
#include "service/tier/tier.h"

namespace cairn {

// A queue of images, which are linked through members of Image. Each operation is O(1) and does not
// allocate.
class ImageQueue {
 public:
  explicit ImageQueue(QueueId id) : id_(id) {}

  Image* front() const { return front_; }
  uint64_t count() const { return count_; }
  bool Has(const Image& image) const { return image.queue == id_; }

  // REQUIRES: the image is in no queue. PushFront() requires the same.
  void PushBack(Image* image);
  void PushFront(Image* image);
  // REQUIRES: the image is in this queue.
  void Remove(Image* image);
  void RemoveIfThere(Image* image) {
    if (Has(*image)) {
      Remove(image);
    }
  }

 private:
  const QueueId id_;
  Image* front_ = nullptr;
  Image* back_ = nullptr;
  uint64_t count_ = 0;
};

// How far an image and the blocks before it in its chain are written to the persistent tier.
struct WriteBackProgress {
  enum class State : uint8_t {
    kThere,     // the tier has all of them
    kOnItsWay,  // `block` is not written completely yet
    kTooLarge,  // `block` has an image that the tier never accepts
    kGone,      // the image is in no tier
    kNoTier,    // there is no persistent tier, or its device has failed
  };
  State state = State::kNoTier;
  BlockName block;
  uint64_t parts = kAllParts;  // if kThere, the parts of the tier that contain them
  friend bool operator==(const WriteBackProgress&, const WriteBackProgress&) = default;
};

class WriteBackQueue {
 public:
  // Borrows `records`, which know the persistent tier.
  explicit WriteBackQueue(RestStore& records);

  // Moves the image to the queue to which it belongs. Must be called when the image got or lost a
  // copy, and when a write of it began or ended.
  void Refresh(Image* image);

  // --- Pending encodings

  // The number of images with a pending encoding, and the image that has waited longest (or null).
  uint64_t pending_count() const { return pending_.count(); }
  Image* FirstPending() const { return pending_.front(); }
  // REQUIRES: the image has a copy in the host tier.
  void SetPending(Image* image);
  void ClearPending(Image* image);

  // --- Images that the persistent tier lacks. REQUIRES, for Next() and Expedite(): that tier
  // exists.

  uint64_t uncopied_count() const { return uncopied_.count(); }
  // Begins a search for the next image. The search may need the lock several times. Returns the
  // number of the search, for Next().
  uint32_t BeginRound() { return ++round_; }
  // Returns the first image whose previous block is in the persistent tier, is being written to it,
  // or is not in the host tier. An image that must wait for its previous block moves to the end of
  // the queue, and is examined once per search. Returns null if there is none, or if `visits` are
  // spent.
  Image* Next(uint32_t round, Visits& visits);
  // Does the same as BlockIndex::Expedite() for a linked block. Follows the chain as far as
  // `visits` allow.
  WriteBackProgress Expedite(const Block& block, uint16_t group, const codecs::Slice& slice,
                             Visits& visits);

  // --- Suppressed images

  // Only this function changes Image::suppressed. With kNot, write-back considers the image again.
  void SetSuppressed(Image* image, Suppressed suppressed);
  // Must be called when the block is used. Write-back then no longer skips its images.
  void NoteUse(Block* block) {
    if (block->has_suppressed) {
      WantAgain(block);
    }
  }

  // Must be called when the block has lost its last image.
  void Forget(Block* block) { block->has_suppressed = false; }

  // --- Images that the host tier could drop

  // Returns true if no persistent tier has a copy of the same image. Dropping this copy would then
  // lose the image.
  bool IsDirty(const Copy& copy) const {
    const std::optional<TierId> lasting = records_.lasting();
    return lasting.has_value() && copy.facts.tier == TierId::kHost &&
           copy.image->copies[IndexOf(*lasting)] == nullptr;
  }
  bool HasDirty(const Block& block) const;
  // Returns a block that the host tier can drop: it is complete in the persistent tier, is not
  // held, and has at most rank_max. Of several, returns the one that was written to the persistent
  // tier first. Returns null if there is none, or if `visits` are spent.
  Block* OldestClean(uint8_t rank_max, Visits& visits);

 private:
  // Returns true if the persistent tier accepts the image, but has no copy and is not getting one.
  bool IsMissing(const Image& image) const;
  // Ends the suppression of all images of the block.
  void WantAgain(Block* block);
  // Returns true if the block has an image that is suppressed because the write budget was low.
  static bool HasWithheld(const Block& block);
  // Moves an image that the persistent tier lacks to the front of its queue. Returns false if the
  // tier can never accept the image in its current form.
  bool Hurry(Image* image);
  // Returns an image of the block that must be written to the persistent tier before the block's
  // children, or null.
  Image* WaitsFor(const Block& parent);

  RestStore& records_;
  const uint64_t image_bytes_max_;  // the persistent tier's limit
  ImageQueue pending_{QueueId::kPending};
  ImageQueue uncopied_{QueueId::kUncopied};
  ImageQueue clean_{QueueId::kClean};
  uint32_t round_ = 0;
};

}  // namespace cairn
