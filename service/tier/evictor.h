// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who knows which copies may go. Tiers ask it for room; the index implements it.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "service/tier/block_name.h"
#include "service/tier/image_facts.h"
#include "service/tier/tier_extent.h"

namespace cairn {

enum class EvictionReason : uint8_t {
  kCapacity,   // a put needed the bytes
  kWindow,     // a put needed contiguous bytes
  kWatermark,  // upkeep, ahead of need
  kBlocks,     // the index holds its maximum of blocks
  kImages,     // the index holds its maximum of images
  kIndex,      // the index holds its maximum of bytes
};
inline constexpr size_t kEvictionReasonCount = 6;
std::string_view Name(EvictionReason reason);

// What goes, and in which order:
//
// - A block whose chain is broken goes first: a block before it is in no tier and not on its way.
// - Otherwise a block without children in the tier goes, the least recently used first.
// - Nothing that is held goes.
// - For a newcomer, the block that needs the room: none of the blocks before it goes. Where its own
//   chain is broken, only blocks of broken chains go.
//
// Thread-safety: Thread-safe. Called with no lock held; an implementation takes its own.
class Evictor {
 public:
  virtual ~Evictor() = default;
  // Drops the copies in the tier of the next block that goes for the `newcomer` (null: for no
  // block). Returns the bytes that it freed, as allocated; 0 when there is none. REQUIRES: the tier
  // is leaf-first.
  virtual uint64_t EvictOldest(TierId tier, EvictionReason reason, const BlockName* newcomer) = 0;
  uint64_t EvictOldest(TierId tier, EvictionReason reason) {
    return EvictOldest(tier, reason, nullptr);
  }
  // Looks at a bounded number of ranges of the host's arena, and drops the blocks that stand in the
  // cheapest run of `bytes` among them, children or not. False when there is none; *bytes_passed
  // grows by what was looked at, and the next call goes on there.
  virtual bool EvictWindow(uint64_t bytes, const BlockName* newcomer, uint64_t* bytes_passed) = 0;
  // Drops the copy at a place that its tier chose. False: it is held, and has to be carried along.
  // True also where it is gone already.
  virtual bool EvictCopy(TierId tier, const ImageFacts& image, uint64_t offset,
                         EvictionReason reason) = 0;

  enum class Moved : uint8_t {
    kMoved,
    kGone,  // it was evicted or deleted: nothing is there to move
    kBusy,  // somebody reads it: not now
  };
  // The tier has carried the copy at `offset` to `to`, which has the same bytes. Takes `to` if it
  // moved.
  virtual Moved MoveCopy(TierId tier, const ImageFacts& image, uint64_t offset, TierExtent& to) = 0;
  // The bytes at that place are damaged: the copy goes, held or not.
  virtual void LoseCopy(TierId tier, const ImageFacts& image, uint64_t offset) = 0;
  // Whatever lies in the tier from `begin` to before `end` is lost. Walks over all that there is.
  virtual void LoseCopies(TierId tier, uint64_t begin, uint64_t end) = 0;
};

}  // namespace cairn
