// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface through which tiers ask for room. The index implements it, and decides which copies
// may be evicted.

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
  kWatermark,  // upkeep evicts in advance
  kBlocks,     // the index has its maximum of blocks
  kImages,     // the index has its maximum of images
  kIndex,      // the index has its maximum of bytes
};
inline constexpr size_t kEvictionReasonCount = 6;
std::string_view Name(EvictionReason reason);

// Evicts copies, by these rules:
//
// - First evict blocks of broken chains. These are blocks after one that is in no tier and not
//   being put.
// - Then evict blocks without children in the tier. Those of the lowest rank (hints.h) are first,
//   and of these the least recently used.
// - Never evict copies that are held. A copy is held if it is pinned, or if it is the last copy of
//   a pinned image or of the parent of a put.
// - A newcomer is the block that needs the room. Do not evict blocks before it in its chain. If its
//   own chain is broken, evict only blocks of broken chains.
//
// Thread-safety: Thread-safe. Called without locks held. Implementations take their own locks.
class Evictor {
 public:
  virtual ~Evictor() = default;
  // Evicts the tier's copies of the next block. `newcomer` is the block that needs the room, or
  // null. Returns the freed bytes, as allocated, or 0 if no block can be evicted. REQUIRES: the
  // tier is leaf-first.
  virtual uint64_t EvictOldest(TierId tier, EvictionReason reason, const BlockName* newcomer) = 0;
  uint64_t EvictOldest(TierId tier, EvictionReason reason) {
    return EvictOldest(tier, reason, nullptr);
  }
  // Examines a bounded number of ranges of the host arena. Evicts the blocks in the cheapest
  // contiguous run of `bytes` among them, with or without children. Returns false if there is no
  // such run. Adds the examined bytes to *bytes_passed. The next call continues after them.
  virtual bool EvictWindow(uint64_t bytes, const BlockName* newcomer, uint64_t* bytes_passed) = 0;
  // Evicts the copy at a place that its tier has chosen. Returns true if the copy is now gone.
  // Returns false if the copy is held and must be moved instead.
  virtual bool EvictCopy(TierId tier, const ImageFacts& image, uint64_t offset,
                         EvictionReason reason) = 0;

  // Returns true if a client's hint retains the image's block. A tier that evicts by place should
  // then move it.
  virtual bool IsRetained(const ImageFacts&) const { return false; }

  enum class Moved : uint8_t {
    kMoved,
    kGone,  // evicted or deleted: there is nothing to move
    kBusy,  // being read: try again later
  };
  // Tells the index that the tier has copied the bytes at `offset` to `to`. The index owns `to` if
  // it returns kMoved.
  virtual Moved MoveCopy(TierId tier, const ImageFacts& image, uint64_t offset, TierExtent& to) = 0;
  // Drops the copy at that place because its bytes are damaged, even if it is held.
  virtual void LoseCopy(TierId tier, const ImageFacts& image, uint64_t offset) = 0;
  // Drops all copies of the tier in [begin, end). Walks the whole index.
  virtual void LoseCopies(TierId tier, uint64_t begin, uint64_t end) = 0;
};

}  // namespace cairn
