// SPDX-License-Identifier: Apache-2.0
#pragma once
// The index's interface to the copies of images, for upkeep, which recodes them, copies them
// between tiers and verifies them.
//
// Thread-safety: Thread-safe. BlockIndex implements it with its lock.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "service/index/new_image.h"
#include "service/index/pin.h"
#include "service/tier/block_name.h"
#include "service/tier/tier.h"

namespace cairn {

// An image being written to the persistent tier. Destroyed without FinishCopy(), it goes behind all
// other waiting images.
struct Uncopied {
  CopyPin source;  // in the host tier
  CopyWriter writer;
  proto::BlockKey parent{};  // all zero: none
  CopyPin parent_copy;       // a copy of that block in the persistent tier; empty: none yet
  bool is_used = false;      // the block was requested since it is stored
};

// The progress of an image, and of the chain before it, towards the persistent tier.
struct WriteDownProgress {
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
  friend bool operator==(const WriteDownProgress&, const WriteDownProgress&) = default;
};

class Copies {
 public:
  virtual ~Copies() = default;

  // Replaces the pinned copy by another one of the same tier and slice, in another recipe. Readers
  // of the old bytes keep them. Returns false, and frees `copy`, if the pinned copy is no longer
  // the image's.
  virtual bool Replace(const CopyPin& pin, NewCopy copy) = 0;
  // Begins another copy of the image, in another tier. The caller writes it and calls FinishCopy().
  // Returns an empty writer if the tier has a copy, gets one already or is out, or if the image is
  // gone.
  virtual CopyWriter BeginCopy(const CopyPin& source, TierId tier) = 0;
  // Completes the copy. Returns false, and frees `copy`, if the image is gone or the tier is out
  // meanwhile. REQUIRES: `copy` is in that tier.
  virtual bool FinishCopy(CopyWriter writer, NewCopy copy) = 0;
  // Returns the next image to write to the persistent tier: in the order of publication, but
  // ancestors before descendants. Images with a pending encoding wait. nullopt: none now.
  virtual std::optional<Uncopied> TakeUncopied() = 0;
  virtual uint64_t uncopied_count() const = 0;
  // Takes the image out of the write-back queue until its block, or one that follows it, is used.
  virtual void LetGo(CopyWriter writer) = 0;
  // Moves the images of a slice to the front of TakeUncopied(), behind their ancestors; if the
  // persistent tier has them, moves the nearest ancestor that it lacks. Examines as many ancestors
  // as one hold of the lock may: those further up were begun long before.
  virtual WriteDownProgress Expedite(const BlockName& name, uint16_t group,
                                     const codecs::Slice& slice) = 0;
  // Copies in the tier that were lost so far.
  virtual uint64_t lost_count(TierId tier) const = 0;
  // The tier's device is out: drops its copies, and refuses new ones until PutBack(). Returns the
  // blocks that had copies there.
  virtual uint64_t TakeOut(TierId tier) = 0;
  virtual void PutBack(TierId tier) = 0;
  // Returns whether none was unlinked since it was pinned.
  virtual bool ArePublished(std::span<const CopyPin> pins) const = 0;
  virtual uint64_t pending_count() const = 0;
  // Returns pins of up to `count` raw images with a pending encoding, oldest first; each is
  // returned once. REQUIRES: count <= kVisitsPerHoldMax.
  virtual CopyPins TakePending(size_t count) = 0;
  // Returns whether the encoding of a pinned image is pending; if so, no other call returns it.
  virtual bool TakePending(const CopyPin& pin) = 0;
  // Returns the block before that of a pinned image. Empty: there is none, or the copy is unlinked.
  virtual std::optional<BlockName> BlockBefore(const CopyPin& pin) const = 0;
  // Makes it pending again, if it could not be encoded yet.
  virtual void PutBackPending(const CopyPin& pin) = 0;
  // Walks all images without holding the lock for long. Returns pins of the copies in the host tier
  // in the next slots from *cursor on (start with 0), of one space or of all (0). Returns false at
  // the end of the walk.
  virtual bool Walk(uint64_t space_id, uint64_t* cursor, CopyPins* pins) = 0;
  // Walks likewise, one copy at a time, in any tier. *pin is the next one, or empty if the next
  // slots have none.
  virtual bool WalkTier(TierId tier, uint64_t space_id, uint64_t* cursor, CopyPin* pin) = 0;
};

}  // namespace cairn
