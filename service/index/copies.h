// SPDX-License-Identifier: Apache-2.0
#pragma once
// A room of the index: the copies of images, for upkeep, which encodes them anew, copies them
// between tiers and checks them.
//
// Thread-safety: Thread-safe. BlockIndex implements it, and its lock is the only one.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "service/index/new_image.h"
#include "service/index/pin.h"
#include "service/tier/block_name.h"
#include "service/tier/tier.h"

namespace cairn {

// An image on its way into the lasting tier. Destroyed without FinishCopy(), it goes behind all
// others that wait.
struct Uncopied {
  ResidentPin source;  // in the host tier
  CopyWriter writer;
  proto::BlockKey parent{};  // all zero: none
  ResidentPin beside;        // a copy of that block in the lasting tier; empty: there is none yet
  bool is_used = false;      // somebody asked for the block since it is there
};

// How far an image, and the chain before it, are on the way into the lasting tier.
struct WayDown {
  enum class State : uint8_t {
    kThere,     // all are there
    kOnItsWay,  // `block` is not, or not all of it
    kTooLarge,  // `block` has an image that the tier never takes
    kGone,      // the image is nowhere
    kNoTier,    // there is no lasting tier, or it is out
  };
  State state = State::kNoTier;
  BlockName block;
  uint64_t parts = kAllParts;  // kThere: of the tier, in which all of it lies
  friend bool operator==(const WayDown&, const WayDown&) = default;
};

class Copies {
 public:
  virtual ~Copies() = default;

  // Swaps the pinned copy for another of the same tier, of the same slice in another recipe;
  // readers of the old bytes keep them. False, `copy` freed, if the pinned one is no longer the
  // image's.
  virtual bool Replace(const ResidentPin& pin, NewCopy copy) = 0;
  // One more copy of the image, in another tier: written by the caller, which then finishes it.
  // Empty where the tier has one, gets one already, or is out, and where the image is gone.
  virtual CopyWriter BeginCopy(const ResidentPin& source, TierId tier) = 0;
  // It is whole. False, `copy` freed, if the image is gone or the tier out meanwhile. REQUIRES:
  // `copy` lies in the tier that was begun.
  virtual bool FinishCopy(CopyWriter writer, NewCopy copy) = 0;
  // The next image that the lasting tier is to have, in the order published, but ancestors before
  // descendants; those whose encoding is pending wait. nullopt: there is none now.
  virtual std::optional<Uncopied> TakeUncopied() = 0;
  virtual uint64_t uncopied_count() const = 0;
  // The lasting tier is not to have it, until somebody uses its block or one that follows it.
  virtual void LetGo(CopyWriter writer) = 0;
  // Makes the images of a slice the next that TakeUncopied() hands out, after their ancestors, or,
  // where the lasting tier has them, the nearest ancestor that it has not. Looks at so many blocks
  // before them as one hold of the lock may: those further up were begun long before.
  virtual WayDown Expedite(const BlockName& name, uint16_t group, const codecs::Slice& slice) = 0;
  // Copies in the tier that were lost so far.
  virtual uint64_t lost_count(TierId tier) const = 0;
  // The tier's device is out: drops what it had, and takes nothing until PutBack(). Returns the
  // blocks that had copies there.
  virtual uint64_t TakeOut(TierId tier) = 0;
  virtual void PutBack(TierId tier) = 0;
  // None has been unlinked since it was pinned.
  virtual bool ArePublished(std::span<const ResidentPin> pins) const = 0;
  virtual uint64_t pending_count() const = 0;
  // Pins of up to `count` images kept raw whose encoding is pending, in the order in which they
  // came to be; each is handed out once. REQUIRES: count <= kVisitsPerHoldMax.
  virtual ResidentPins TakePending(size_t count) = 0;
  // Whether the encoding of a pinned image is pending; if so, it is handed out by this.
  virtual bool TakePending(const ResidentPin& pin) = 0;
  // The block before that of a pinned image. Empty: there is none, or the copy is unlinked.
  virtual std::optional<BlockName> BlockBefore(const ResidentPin& pin) const = 0;
  // It could not be encoded yet: it is pending again.
  virtual void PutBackPending(const ResidentPin& pin) = 0;
  // Walks all images without holding the lock for long: pins of the copies in the host tier in the
  // next slots from *cursor on (start with 0), of one space or of all (0). False: the walk is over.
  virtual bool Walk(uint64_t space_id, uint64_t* cursor, ResidentPins* pins) = 0;
  // Likewise one copy at a time, of any tier: *pin is the next, or empty where the next slots have
  // none.
  virtual bool WalkTier(TierId tier, uint64_t space_id, uint64_t* cursor, ResidentPin* pin) = 0;
};

}  // namespace cairn
