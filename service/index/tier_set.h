// SPDX-License-Identifier: Apache-2.0
#pragma once
// The copies of images in the tiers: how they are added and removed, which of them are held, and in
// which order they are evicted. Part of BlockIndex. docs/internals/adr/0012-images-and-copies.md
// describes the states of a copy.
//
// State: the images and copies of each block, the tiers' orders of eviction, pins, and the
// statistics of all of these.
//
// Invariants:
//
// - Each image of a block has a copy in a tier that may hold the last one. The only exception is
//   the time between UnlinkCopy() and the UnlinkIfLost() that follows.
// - A copy is held (is_held) while it is pinned. The last copy of an image is also held while the
//   image is pinned, or while its block is the parent of a running put. held_count and Order::held
//   count held copies.
// - In a leaf-first tier, a block is in one order of that tier while it has copies there and none
//   of its children has. An orphaned block is in the order of broken chains, any other block in the
//   order of its rank.
// - The statistics count linked copies. pinned_bytes counts held copies, linked or not.
// - WriteBackQueue is told of each copy that is added or removed, and of each use of a block.
//
// Each tier has its own order, child counts and statistics.
//
// Thread-safety: Thread-compatible (the index's lock). Locks: frees extents under the index's lock:
// index < arena.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "service/index/announce_ring.h"
#include "service/index/block.h"
#include "service/index/event_log.h"
#include "service/index/recency.h"
#include "service/index/rest_store.h"
#include "service/index/write_back_queue.h"
#include "service/tier/evictor.h"
#include "service/tier/image_facts.h"
#include "service/tier/tier.h"

namespace cairn {

// Statistics of a space, or of all spaces.
struct IndexFigures {
  uint64_t block_count = 0;
  uint64_t image_count = 0;
  uint64_t source_bytes = 0;                      // decoded size, each image counted once
  uint64_t image_bytes = 0;                       // bytes of all copies in all tiers
  uint64_t copies_source_bytes = 0;               // decoded size of all these copies
  std::array<uint64_t, kTierCount> tier_bytes{};  // image_bytes of each tier, by IndexOf(tier)
};

// Statistics of the copies in one tier.
struct CopyFigures {
  uint64_t block_count = 0;  // blocks with copies in the tier
  uint64_t copy_count = 0;
  uint64_t image_bytes = 0;
  uint64_t source_bytes = 0;  // decoded size
  // Allocated bytes of held copies, including unlinked ones.
  uint64_t pinned_bytes = 0;
  uint64_t leased_bytes = 0;  // allocated bytes of leased images
  // The number of blocks that were evicted since the start because the index was full, although the
  // tier was not.
  uint64_t evicted_for_index = 0;
  uint64_t lost_count = 0;  // copies lost since the start
};

// Families of recipes with so many names that each name cannot be the value of a label. Their
// recipes use a profile (cairn) or a bank (patternkv).
inline constexpr std::string_view kRecipeFamilies[] = {"cairn", "patternkv"};

class TierSet {
 public:
  // The blocks of a leaf-first tier that have no children in the tier.
  struct Order {
    std::unique_ptr<Recency> recency;
    uint64_t held = 0;  // the number of held blocks among them

    bool has_unheld() const { return held < recency->count(); }
  };
  // Indices of the orders of a tier. Eviction takes the blocks of broken chains first, then the
  // others by rank.
  enum : size_t { kOrphaned = 0, kRanked = 1, kOrderCount = kRanked + kRankCount };

  // Borrows the tiers for the call, and the other arguments for its lifetime.
  TierSet(RestStore& records, WriteBackQueue& write_back, std::span<CopyTier* const> tiers,
          uint64_t blocks_max, const Clock& clock, EventLog& events);

  // Must be called when the tier's device has failed, or works again. A tier gets no copies while
  // its device has failed.
  void SetOut(TierId tier, bool is_out) { At(tier).is_out = is_out; }
  bool is_out(TierId tier) const { return At(tier).is_out; }

  // --- Images and copies

  // Adds an image that has no copies yet. REQUIRES: the caller calls LinkCopy() next.
  Image* LinkImage(Block* block, const ImageFacts& facts);
  // REQUIRES: the image has no copy in that tier.
  void LinkCopy(Image* image, NewCopy copy);
  // Unlinks all images of a block. Their copies are freed now or at their last unpin.
  void UnlinkImages(Block* block);
  // Replaces the copy by another one in the same tier. REQUIRES, for this function and Lose(): the
  // copy is linked.
  void Replace(Copy* copy, NewCopy successor);
  // Removes a copy that is damaged, or whose device has failed. If it was the last copy of the
  // image, also removes the image.
  void Lose(Copy* copy);
  // Removes the block's copies in [begin, end) of a tier.
  void Lose(Block* block, TierId tier, uint64_t begin, uint64_t end);
  // Returns the linked copy at that place of a tier, or null.
  Copy* FindCopy(Block* block, TierId tier, uint64_t offset);

  // Returns false if the tier has a copy, is getting one, or its device has failed.
  bool BeginCopy(Image* image, TierId tier);
  // Returns whether FinishCopy() would link the copy: the image exists, and the device works.
  bool MayFinishCopy(const Image& image, TierId tier) const {
    return image.block != nullptr && !At(tier).is_out;
  }
  // Returns false, and frees `copy`, if MayFinishCopy() is false.
  bool FinishCopy(Image* image, TierId tier, NewCopy copy);
  void GiveUpCopy(Image* image, TierId tier);

  // --- Pins and leases

  void Pin(Image* image);
  void Unpin(Image* image);
  void Pin(Copy* copy);
  void Unpin(Copy* copy);
  // The lease counts a number of bytes for the image. This number stays the same until the lease
  // ends, even if the image is deleted. Only a new copy of the image changes it.
  void LeasePin(Image* image);
  void LeaseUnpin(Image* image);
  // Returns true if leases pin more than `host_bytes_max` of the host tier, or more than
  // kPinnedPercentMax of another tier.
  bool IsLeasedPast(uint64_t host_bytes_max) const;
  // Must be called when a put of a child of the block has begun or ended.
  void RefreshHeld(Block* block);

  // --- Recency and eviction

  // Marks the block as used. A block that was fetched from another member gets kFetchedRank once
  // the get that waited for it reads it. Its second use makes it a plain one: a match that finds
  // it, or a get that comes a while after the last one, as a block may be fetched for several gets.
  // Any use raises a demoted block.
  enum class Use : uint8_t { kGet, kMatch };
  void Touch(Block* block, absl::Time now, Use use = Use::kGet);
  // A client of this daemon has computed a part of the block: it is no copy any more.
  void NoteComputed(Block* block);
  // Must be called when the block's chain has broken, or is complete again. Moves the block to the
  // matching order in each tier.
  void SetOrphaned(Block* block, bool is_orphaned);
  // Must be called when the block's hint has changed or ended. Moves the block to the order of its
  // rank in each tier. REQUIRES: linked.
  void SetRank(Block* block, uint8_t rank);
  bool is_leaf_first(TierId tier) const { return At(tier).traits.is_leaf_first; }
  // REQUIRES: the tier is leaf-first.
  Order& order(TierId tier, size_t i) { return At(tier).orders[i]; }
  // Returns whether every block that has copies in the tier has a held copy there.
  bool is_all_held(TierId tier) const { return At(tier).held_blocks == figures(tier).block_count; }
  // Evicts a block's copies in a tier. Returns the bytes that are free now. REQUIRES: no copy is
  // held.
  uint64_t Evict(Block* block, TierId tier, EvictionReason reason);
  // Evicts one copy. REQUIRES: linked and not held.
  void Evict(Copy* copy, EvictionReason reason);

  // --- Events

  // From now on, blocks that come and go are announced to other members, and blocks may be fetched
  // from them. `ring` must outlive the object. REQUIRES: the records keep runs.
  void SetAnnouncements(AnnounceRing* ring);
  IndexEvent EventOf(const Block& block, TierId tier, bool is_stored) const;
  // Must be called when the block has got names. For each tier that has the block, emits an event
  // that it is stored.
  void EmitNamed(const Block& block);

  // --- Statistics

  // Counts a new block, or stops counting a block that is about to be removed.
  void CountBlock(const Block& block, bool is_there);
  const IndexFigures& figures() const { return figures_; }
  IndexFigures figures(uint64_t space_id) const;
  const CopyFigures& figures(TierId tier) const { return At(tier).figures; }
  uint64_t leased_bytes() const { return figures(TierId::kHost).leased_bytes; }
  void Report(MetricSink& sink) const;

 private:
  struct RecipeFigures {
    uint64_t image_count = 0, image_bytes = 0, source_bytes = 0;
  };
  struct InTier {
    bool exists = false;
    bool is_out = false;
    TierTraits traits;
    std::array<Order, kOrderCount> orders;  // empty if the tier is not leaf-first
    // Set for tiers that may hold the last copy, except the host tier.
    uint64_t lease_bytes_max = UINT64_MAX;
    uint64_t held_blocks = 0;
    CopyFigures figures;
    uint64_t published_bytes_total = 0, unlinked_bytes_total = 0;
    std::array<uint64_t, kEvictionReasonCount> evicted_blocks{};
    std::array<uint64_t, kEvictionReasonCount> evicted_bytes{};
    uint64_t evicted_dirty_images = 0, evicted_dirty_bytes = 0;
    Histogram evicted_unused_seconds{AgeBounds()};
  };

  InTier& At(TierId tier) { return tiers_[IndexOf(tier)]; }
  const InTier& At(TierId tier) const { return tiers_[IndexOf(tier)]; }
  Order& OrderOf(InTier& tier, const Block& block) {
    return tier.orders[block.is_orphaned ? kOrphaned : kRanked + block.rank];
  }

  // Returns the bytes that are now free. Call UnlinkIfLost() next, since the image may have no
  // copies left.
  uint64_t UnlinkCopy(Copy* copy);
  // Unlinks the image if it has no copy in a tier that may hold the last one.
  void UnlinkIfLost(Image* image);
  void ForgetImage(Image* image);  // REQUIRES: no copies, and no longer in the block
  // Emits the event that a block got its first copy in a tier, or loses its last.
  void EmitEvent(const Block& block, TierId tier, bool is_stored);
  // Announces that a block got its first copy in any tier, or lost its last. Call it when the block
  // got its first copy in `tier`, or lost its last one there. A block whose run is unknown is not
  // announced.
  void Announce(const Block& block, TierId tier, bool is_stored);
  // Counts a child whose first copy in a tier was added, or whose last one was removed.
  void CountChildIn(const Block& child, TierId tier, int sign);
  // Removes the block from its order in each tier. Requeue() follows.
  void Unqueue(Block* block);
  // Adds the block to the tier's order or removes it, according to its copies and children.
  void Requeue(Block* block, TierId tier);
  bool IsLast(const Copy& copy) const;
  // Returns true if the image's last copy must not be evicted.
  static bool IsKept(const Image& image);
  void SetHeld(Copy* copy, bool is_held);
  void RefreshHeld(Image* image);
  void CountLease(Image* image, TierId tier, uint64_t bytes);
  void Count(const Copy& copy, int sign);
  void CountEvicted(const Block& block, TierId tier, EvictionReason reason);
  void ReportTier(TierId id, MetricSink& sink) const;

  RestStore& records_;
  WriteBackQueue& write_back_;
  const Clock& clock_;
  EventLog& events_;
  AnnounceRing* announcements_ = nullptr;  // null: nobody is told
  std::array<InTier, kTierCount> tiers_;   // indexed by IndexOf(tier)
  IndexFigures figures_;
  absl::flat_hash_map<uint64_t, IndexFigures> figures_by_space_;
  // By index in codecs::AllRecipes(), followed by kRecipeFamilies.
  std::array<RecipeFigures, 64> figures_by_recipe_{};
  Histogram reuse_seconds_{AgeBounds()};
};

}  // namespace cairn
