// SPDX-License-Identifier: Apache-2.0
#pragma once
// The write-back queue: the images that the persistent tier lacks, in the order of publication, and
// the images that the host tier could drop because the persistent tier has them. Part of
// BlockIndex.
//
// State: three queues of images, and the images that write-back leaves out (Suppressed).
//
// Invariants, each as of the last Refresh() of the image:
//
// - An image is in one queue at most. It is in the host tier while it is in one.
// - Pending: its encoding is pending. The image is in no other queue until then.
// - Uncopied: the persistent tier lacks it and accepts it, no write of it is under way,
//   and it is not suppressed.
// - Clean: it is in both the host tier and the persistent one.
// - A block that has a suppressed image has Block::has_suppressed, so that its next use is seen and
//   ends that.
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

// A queue of images, linked through the images: each operation is O(1) and allocates nothing.
class ImageQueue {
 public:
  explicit ImageQueue(QueueId id) : id_(id) {}

  Image* front() const { return front_; }
  uint64_t count() const { return count_; }
  bool Has(const Image& image) const { return image.queue == id_; }

  // REQUIRES, for both: in no queue.
  void PushBack(Image* image);
  void PushFront(Image* image);
  // REQUIRES: in the queue.
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

// The progress of an image, and of the chain before it, towards the persistent tier.
struct WriteBackProgress {
  enum class State : uint8_t {
    kThere,     // all are in the tier
    kOnItsWay,  // `block` is not, or not completely
    kTooLarge,  // `block` has an image that the tier never accepts
    kGone,      // the image is in no tier
    kNoTier,    // there is no persistent tier, or it is out
  };
  State state = State::kNoTier;
  BlockName block;
  uint64_t parts = kAllParts;  // kThere: the parts of the tier that contain all of it
  friend bool operator==(const WriteBackProgress&, const WriteBackProgress&) = default;
};

class WriteBackQueue {
 public:
  // Borrows the records, which know the persistent tier.
  explicit WriteBackQueue(RestStore& records);

  // The image got or lost a copy, or a write of it began or ended: files it anew.
  void Refresh(Image* image);

  // --- Pending encodings

  // The images whose encoding is pending, and the one that has waited longest; null: none.
  uint64_t pending_count() const { return pending_.count(); }
  Image* FirstPending() const { return pending_.front(); }
  // REQUIRES: it has a copy in the host tier.
  void SetPending(Image* image);
  void ClearPending(Image* image);

  // --- Images that the persistent tier lacks. REQUIRES, for Next() and Expedite(): there is one.

  uint64_t uncopied_count() const { return uncopied_.count(); }
  // Begins a search for the next image, which may take several holds. Returns its number for
  // Next().
  uint32_t BeginRound() { return ++round_; }
  // Returns the first image whose previous block is in the persistent tier, being written to it, or
  // not in the host tier. An image that waits for its previous block goes behind all others and is
  // examined once a round. Null: none, or `visits` are spent.
  Image* Next(uint32_t round, Visits& visits);
  // Like BlockIndex::Expedite(), for a linked block, as far up the chain as `visits` allow.
  WriteBackProgress Expedite(const Block& block, uint16_t group, const codecs::Slice& slice,
                             Visits& visits);

  // --- Suppressed images

  // The only setter of this state. kNot: the image counts again as one that the persistent tier
  // lacks.
  void SetSuppressed(Image* image, Suppressed suppressed);
  // The block was used: ends what write-back leaves out of it.
  void NoteUse(Block* block) {
    if (block->has_suppressed) {
      WantAgain(block);
    }
  }

  // The block has no images any more.
  void Forget(Block* block) { block->has_suppressed = false; }

  // --- Images that the host tier could drop

  // Returns whether it is the last copy, apart from tiers that do not persist.
  bool IsDirty(const Copy& copy) const {
    const std::optional<TierId> lasting = records_.lasting();
    return lasting.has_value() && copy.facts.tier == TierId::kHost &&
           copy.image->copies[IndexOf(*lasting)] == nullptr;
  }
  bool HasDirty(const Block& block) const;
  // Returns the block that the host tier can drop and that was written to the persistent tier
  // first: it is complete there and not held, and of rank_max at most. Null: none, or `visits` are
  // spent.
  Block* OldestClean(uint8_t rank_max, Visits& visits);

 private:
  // Returns whether it has a copy that the persistent tier accepts, lacks and does not get already.
  bool IsMissing(const Image& image) const;
  // Suppressed images of the block are to be written after all.
  void WantAgain(Block* block);
  // Returns whether an image of it is suppressed because the write budget was low.
  static bool HasWithheld(const Block& block);
  // Moves an image that the persistent tier lacks to the front of its queue. Returns false if the
  // tier never accepts it as it is.
  bool Hurry(Image* image);
  // Returns an image of the block that must be in the persistent tier before its children. Null:
  // none.
  Image* WaitsFor(const Block& parent);

  RestStore& records_;
  const uint64_t image_bytes_max_;  // of the persistent tier
  ImageQueue pending_{QueueId::kPending};
  ImageQueue uncopied_{QueueId::kUncopied};
  ImageQueue clean_{QueueId::kClean};
  uint32_t round_ = 0;
};

}  // namespace cairn
