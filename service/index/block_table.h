// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks themselves: the map, chains, copies, recency, pins and figures. What BlockIndex guards
// with its lock. docs/adr has the table of what happens to a copy.
//
// Chains are kept by name. A block whose parent is not resident counts under the parent's name
// (`orphans`), so that a parent published later, or again, knows its children. Links only join
// first positions that are one block apart, so a chain cannot be a circle.
//
// Each tier has an order, child counts and figures of its own.
//
// Thread-safety: Thread-compatible (the index's lock).
// Locks:         gives extents back while that lock is held: index < arena.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "codecs/recipe/recipe.h"
#include "service/index/block.h"
#include "service/index/figures.h"
#include "service/index/image_queue.h"
#include "service/index/new_image.h"
#include "service/index/recency.h"
#include "service/index/slab.h"
#include "service/index/visits.h"
#include "service/tier/tier.h"

namespace cairn {

// Recipes of more names than a label may have values: those that need a profile, and those that
// need a bank.
inline constexpr std::string_view kRecipeFamilies[] = {"cairn", "patternkv"};

class BlockTable {
 public:
  // Borrows the tiers for the call.
  BlockTable(std::span<CopyTier* const> tiers, uint64_t blocks_max, uint64_t images_max);

  Block* Find(const BlockName& name) const;
  // As BlockIndex::Check().
  absl::StatusOr<std::optional<uint64_t>> Check(const BlockClaim& claim) const;
  // Adds an image, and its block if need be, evicting blocks when the table is full.
  // REQUIRES: Check(image.claim) is nullopt. ResourceExhausted: full, and nothing may go.
  // Unavailable: the tier is out.
  absl::StatusOr<Image*> Add(NewImage image, absl::Time now);
  // Takes all of a block out of sight, in every tier; its copies are freed now or at their last
  // unpin. Returns the bytes that are free now.
  uint64_t UnlinkBlock(Block* block);

  // REQUIRES of both: the copy is linked.
  // Another copy of the same tier takes its place.
  void Replace(Copy* copy, NewCopy successor);
  // It is damaged, or its device is out: leaves, and its image with the last.
  void Lose(Copy* copy);
  // All copies of a block in a tier, lost.
  void LoseIn(Block* block, TierId tier);
  // Nothing is added to a tier that is out.
  void SetOut(TierId tier, bool is_out) { At(tier).is_out = is_out; }

  // As CopyWriter: false where the tier has a copy, gets one already, or is out.
  bool BeginCopy(Image* image, TierId tier);
  // False, the successor freed, if the image is gone or the tier out.
  bool FinishCopy(Image* image, TierId tier, NewCopy copy);
  void GiveUpCopy(Image* image, TierId tier);

  void Touch(Block* block, absl::Time now);
  void Pin(Image* image);
  void Unpin(Image* image);
  void Pin(Copy* copy);
  void Unpin(Copy* copy);
  // What a lease counts stays as it is until its end, but for a new copy: a deleted image counts.
  void LeasePin(Image* image);
  void LeaseUnpin(Image* image);

  // Images whose encoding is pending.
  uint64_t pending_count() const { return pending_count_; }
  void SetPending(Image* image);
  void ClearPending(Image* image);

  // Images with a copy in the host tier that the lasting tier lacks and that are settled, none of
  // them on its way there.
  uint64_t uncopied_count() const { return uncopied_.count(); }
  // The first of them whose block before is in the lasting tier, on its way there, or not in the
  // host tier. One that waits for the block before goes behind all others, and is looked at once a
  // round. Null: there is none, or `visits` are spent.
  Image* NextUncopied(uint32_t round, Visits& visits);
  // Empty: there is no lasting tier.
  std::optional<TierId> lasting() const { return lasting_; }

  // As Evictor, as far as `visits` go; EvictOldest() goes on where they were spent. Once every leaf
  // is held it has nothing more to say of those that it looked at after `since`, a uses().
  uint64_t EvictOldest(TierId tier, EvictionReason reason, uint64_t since, Visits& visits);
  bool EvictWindow(Arena& arena, uint64_t bytes, uint64_t* bytes_passed);
  bool EvictCopy(TierId tier, const ImageFacts& image, uint64_t offset, EvictionReason reason);
  Evictor::Moved MoveCopy(TierId tier, const ImageFacts& image, uint64_t offset, TierExtent& to);
  void LoseCopy(TierId tier, const ImageFacts& image, uint64_t offset);

  uint64_t uses() const { return uses_; }
  bool IsEveryLeafHeld(TierId tier) const {
    const InTier& in = At(tier);
    return in.recency == nullptr || in.held_queued == in.recency->count();
  }

  uint32_t slot_count() const { return blocks_.slot_count(); }
  // Null where no linked block is.
  Block* AtSlot(uint32_t slot);
  const Block* AtSlot(uint32_t slot) const;

  const IndexFigures& figures() const { return figures_; }
  IndexFigures figures(uint64_t space_id) const;
  const CopyFigures& figures(TierId tier) const { return At(tier).figures; }
  uint64_t leased_bytes() const { return figures(TierId::kHost).leased_bytes; }
  // More of the host tier is leased than `host_bytes_max`, or more than kPinnedPercentMax of
  // another.
  bool IsLeasedPast(uint64_t host_bytes_max) const;
  void Report(MetricSink& sink) const;

 private:
  struct Orphans {
    uint32_t count = 0;
    uint64_t first_position = 0;  // of every one of them
    std::array<uint32_t, kTierCount> count_in{};
  };
  struct NameHash {
    using is_transparent = void;
    size_t operator()(const BlockName& name) const { return absl::Hash<BlockName>{}(name); }
    size_t operator()(const Block* block) const { return (*this)(block->name); }
  };
  struct NameEqual {
    using is_transparent = void;
    bool operator()(const Block* a, const Block* b) const { return a == b || a->name == b->name; }
    bool operator()(const Block* a, const BlockName& b) const { return a->name == b; }
    bool operator()(const BlockName& a, const Block* b) const { return a == b->name; }
  };
  struct RecipeFigures {
    uint64_t image_count = 0, image_bytes = 0, source_bytes = 0;
  };
  struct InTier {
    bool exists = false;
    bool is_out = false;
    TierTraits traits;
    std::unique_ptr<Recency> recency;       // blocks without children there; null: not leaf-first
    uint64_t lease_bytes_max = UINT64_MAX;  // of others than the host's
    uint64_t held_blocks = 0;
    uint64_t held_queued = 0;  // of those, in recency
    CopyFigures figures;
    uint64_t published_bytes_total = 0, unlinked_bytes_total = 0, lost_total = 0;
    std::array<uint64_t, kEvictionReasonCount> evicted_blocks{};
    std::array<uint64_t, kEvictionReasonCount> evicted_bytes{};
    uint64_t evicted_dirty_images = 0, evicted_dirty_bytes = 0;
  };

  InTier& At(TierId tier) { return tiers_[IndexOf(tier)]; }
  const InTier& At(TierId tier) const { return tiers_[IndexOf(tier)]; }

  // Blocks and chains.
  absl::Status CheckPlaceInChain(const BlockClaim& claim) const;
  Block* LinkBlock(const BlockClaim& claim, absl::Time now);
  void RemoveBlock(Block* block);  // REQUIRES: no images
  void AddChild(const BlockName& parent, uint64_t first_position);
  void RemoveChild(const BlockName& parent);
  void AddChildIn(const Block& child, TierId tier);
  void RemoveChildIn(const Block& child, TierId tier);
  // Into or out of the tier's order, as its copies and children are now.
  void Requeue(Block* block, TierId tier);

  // Images and copies.
  Image* LinkImage(Block* block, const ImageFacts& facts);
  void LinkCopy(Image* image, NewCopy copy);
  // Returns the bytes that are free now. The image may be left without copies: Settle().
  uint64_t UnlinkCopy(Copy* copy);
  // Takes an image out of its block if no copy may be its last, and the block with its last image.
  void Settle(Image* image);
  void ForgetImage(Image* image);  // REQUIRES: no copies; out of the block already
  void FreeCopy(Copy* copy);
  void FreeIfUnused(Image* image);
  bool IsLast(const Copy& copy) const;
  void SetHeld(Copy* copy, bool is_held);
  void RefreshHeld(Image* image);
  // It has a copy that the lasting tier takes, has not, and does not get already.
  bool IsMissing(const Image& image) const;
  // Into or out of the queue of those that the lasting tier lacks.
  void RefreshUncopied(Image* image);
  // An image of a block that is to be in the lasting tier before its children. Null: none.
  Image* WaitsFor(const Block& parent);
  // The last copy but for tiers that do not last.
  bool IsDirty(const Copy& copy) const {
    return lasting_.has_value() && copy.facts.tier == TierId::kHost &&
           copy.image->copies[IndexOf(*lasting_)] == nullptr;
  }
  void CountLease(Image* image, TierId tier, uint64_t bytes);
  void Count(const Copy& copy, int sign);

  void ReportTier(TierId id, MetricSink& sink) const;

  // Eviction.
  Block* OldestUnheld(TierId tier, uint64_t since, Visits& visits);
  // The nearest ancestor in the tier that is not held; null: there is none, or `visits` are spent.
  Block* UnheldAncestor(const Block& block, TierId tier, Visits& visits);
  // The linked copy at that place of a tier. Null: there is none.
  Copy* FindCopy(TierId tier, const ImageFacts& image, uint64_t offset) const;
  // Drops a block's copies in a tier. Returns the bytes that are free now.
  uint64_t EvictFrom(Block* block, TierId tier, EvictionReason reason);
  // Drops a whole block, if one may go. False: none.
  bool EvictAnywhere(EvictionReason reason, Visits& visits);

  const uint64_t blocks_max_, images_max_;
  Slab<Block> blocks_;
  Slab<Image> images_;
  Slab<Copy> copies_;
  absl::flat_hash_set<Block*, NameHash, NameEqual> by_name_;
  absl::flat_hash_map<BlockName, Orphans> orphans_;
  std::array<InTier, kTierCount> tiers_;  // by IndexOf(tier)
  std::optional<TierId> lasting_;
  uint64_t lasting_image_bytes_max_ = 0;
  ImageQueue uncopied_;
  uint64_t uses_ = 0;

  IndexFigures figures_;
  absl::flat_hash_map<uint64_t, IndexFigures> figures_by_space_;
  std::array<RecipeFigures, 64>
      figures_by_recipe_{};  // by place in codecs::AllRecipes(), then in kRecipeFamilies
  uint64_t pending_count_ = 0;
};

}  // namespace cairn
