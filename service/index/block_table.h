// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks themselves: the map, chains, copies, recency, pins and figures. What BlockIndex guards
// with its lock. docs/internals/adr has the table of what happens to a copy.
//
// Chains are kept by name. A parent that is not there is known by its name all the same (see
// Block), so that, published later, or again, it knows its children. Links only join first
// positions that are one block apart, so a chain cannot be a circle.
//
// A chain is broken where a block is neither there nor on its way. What follows is of no use until
// that block comes, and is evicted first. When a block goes or comes, those that follow it change
// with it, later: SettleCuts() goes over them a few at a time.
//
// Each tier has an order, child counts and figures of its own.
//
// A block that is in the lasting tier only and that nobody uses is at rest (block.h). To find it,
// to compare its slices, to touch it and to follow its chain does not wake it.
//
// Thread-safety: Thread-compatible (the index's lock).
// Locks:         gives extents back while that lock is held: index < arena.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/metric.h"
#include "codecs/recipe/recipe.h"
#include "service/index/block.h"
#include "service/index/copies.h"
#include "service/index/event_log.h"
#include "service/index/figures.h"
#include "service/index/image_kinds.h"
#include "service/index/image_queue.h"
#include "service/index/name_table.h"
#include "service/index/new_image.h"
#include "service/index/recency.h"
#include "service/index/slab.h"
#include "service/index/visits.h"
#include "service/tier/tier.h"

namespace cairn {

// Recipes of more names than a label may have values: those that need a profile, and those that
// need a bank.
inline constexpr std::string_view kRecipeFamilies[] = {"cairn", "patternkv"};

// One eviction, which may take several holds.
struct Eviction {
  TierId tier = TierId::kHost;
  EvictionReason reason = EvictionReason::kCapacity;
  const BlockName* newcomer = nullptr;  // null: for no block
  // A uses(): once every leaf is held, those looked at after it have nothing more to say.
  uint64_t since = UINT64_MAX;
  bool is_past_leaves = false;  // the last hold looked at what held leaves follow
};

class BlockTable {
 public:
  // Borrows the tiers for the call, but for the lasting one, which outlives this as the clock and
  // `events` do. Tells these what blocks come into tiers and go.
  BlockTable(std::span<CopyTier* const> tiers, uint64_t blocks_max, uint64_t images_max,
             const Clock& clock, EventLog& events, uint64_t awake_bytes_max);

  // Null where it has no images.
  Block* Find(const BlockName& name) const;
  // As who asks for it sees it: null also where its time is over.
  Block* FindFresh(const BlockName& name) const;
  bool IsExpired(const Block& block) const;
  // Takes the block out of sight if its time is over.
  void DropExpired(Block* block);
  // Blocks whose time will be over.
  uint64_t expiring_count() const { return expiring_count_; }
  // As Images::LeasedAfter(), as far as `visits` go.
  std::vector<BlockName> LeasedAfter(const BlockName& name, size_t count, Visits& visits) const;
  // Null: none is known.
  const Block* ParentOf(const Block& block) const;
  Block* ParentOf(Block& block) { return At(block.parent); }

  // --- What may be asked of a block at rest. REQUIRES: linked.

  // In the order published; of `scratch` where it is at rest.
  absl::Span<const ImageRef> RefsOf(const Block& block, ImageRefs* scratch) const;
  // Of its image at that place in RefsOf().
  struct Brief {
    TierId tier = TierId::kHost;  // of the best copy
    uint64_t image_bytes = 0;     // of the best copy
    uint64_t lease_bytes = 0;     // in the host tier, where the image is not leased yet
  };
  Brief BriefOf(const Block& block, size_t place) const;
  // Of each image and its best copy.
  using Described = absl::FunctionRef<void(const ImageFacts& facts, const CopyFacts& copy,
                                           uint32_t pin_count, const SideObject* side_object)>;
  void Describe(const Block& block, Described described) const;
  bool HasCopiesIn(const Block& block, TierId tier) const;

  // --- Sleep.

  // Its images, as records: they stay while something needs them, else until the next Rest().
  const ImageRefs& Wake(Block* block);
  // What nobody uses any more goes to rest. REQUIRES: nobody has an Image or a Copy that is not
  // pinned or otherwise kept. Cost: as many blocks as were woken or let go since the last call.
  void Rest();

  // ---
  // As BlockIndex::Check().
  absl::StatusOr<std::optional<uint64_t>> Check(const BlockClaim& claim) const;
  // Adds an image, and its block if need be, evicting blocks when the table is full.
  // REQUIRES: Check(image.claim) is nullopt. ResourceExhausted: full, and nothing may go.
  // Unavailable: the tier is out.
  absl::StatusOr<Image*> Add(NewImage image, absl::Time now);
  // A put is on its way: until EndExpect() its block counts as there for those that follow it, and
  // the last copies of the block before it are held. REQUIRES: Check(claim) is no error.
  Block* Expect(const BlockClaim& claim);
  void EndExpect(Block* block);
  // Takes all of a block out of sight, in every tier; its copies are freed now or at their last
  // unpin. Returns the bytes that are free now.
  uint64_t UnlinkBlock(Block* block);

  // REQUIRES of both: the copy is linked.
  // Another copy of the same tier takes its place.
  void Replace(Copy* copy, NewCopy successor);
  // It is damaged, or its device is out: leaves, and its image with the last.
  void Lose(Copy* copy);
  // All copies of a block in a tier, lost, or those from an offset to before another.
  void LoseIn(Block* block, TierId tier, uint64_t begin = 0, uint64_t end = UINT64_MAX);
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

  // Images whose encoding is pending, and that which has waited longest; null: there is none.
  uint64_t pending_count() const { return pending_.count(); }
  Image* FirstPending() const { return pending_.front(); }
  // REQUIRES: it has a copy in the host tier.
  void SetPending(Image* image);
  void ClearPending(Image* image);

  // Images with a copy in the host tier that the lasting tier lacks and that are settled, none of
  // them on its way there.
  uint64_t uncopied_count() const { return uncopied_.count(); }
  // The first of them whose block before is in the lasting tier, on its way there, or not in the
  // host tier. One that waits for the block before goes behind all others, and is looked at once a
  // round. Null: there is none, or `visits` are spent.
  Image* NextUncopied(uint32_t round, Visits& visits);
  // The one place that says so. kNot: it is one of them, if the lasting tier lacks it.
  void SetLetGo(Image* image, LetGo let_go);
  // As Copies::Expedite(), as far up as `visits` go.
  WayDown Expedite(const BlockName& name, uint16_t group, const codecs::Slice& slice,
                   Visits& visits);
  // Empty: there is no lasting tier.
  std::optional<TierId> lasting() const { return lasting_; }

  // As Evictor, as far as `visits` go; EvictOldest() goes on where they were spent.
  uint64_t EvictOldest(Eviction& eviction, Visits& visits);
  bool EvictWindow(Arena& arena, uint64_t bytes, const BlockName* newcomer, uint64_t* bytes_passed);
  bool EvictCopy(TierId tier, const ImageFacts& image, uint64_t offset, EvictionReason reason);
  Evictor::Moved MoveCopy(TierId tier, const ImageFacts& image, uint64_t offset, TierExtent& to);
  void LoseCopy(TierId tier, const ImageFacts& image, uint64_t offset);

  uint64_t uses() const { return uses_; }
  // Of all that it keeps in memory, what is free to be used again included.
  uint64_t bytes() const;
  // Of what blocks that are not at rest take beside the others.
  uint64_t awake_bytes() const {
    return awake_.taken_bytes() + images_.taken_bytes() + copies_.taken_bytes();
  }
  // Until then it may be woken for a lease.
  bool is_full_of_awake() const { return awake_bytes() >= awake_bytes_max_; }
  uint32_t slot_count() const { return blocks_.slot_count(); }
  // Null where no linked block is.
  Block* AtSlot(uint32_t slot);
  const Block* AtSlot(uint32_t slot) const;

  const IndexFigures& figures() const { return figures_; }
  IndexFigures figures(uint64_t space_id) const;
  const CopyFigures& figures(TierId tier) const { return At(tier).figures; }
  uint64_t leased_bytes() const { return figures(TierId::kHost).leased_bytes; }
  uint64_t lost_count(TierId tier) const { return At(tier).lost_total; }
  // More of the host tier is leased than `host_bytes_max`, or more than kPinnedPercentMax of
  // another.
  bool IsLeasedPast(uint64_t host_bytes_max) const;
  void Report(MetricSink& sink) const;

 private:
  struct RecipeFigures {
    uint64_t image_count = 0, image_bytes = 0, source_bytes = 0;
  };
  // Blocks of a leaf-first tier without children there.
  struct Order {
    std::unique_ptr<Recency> recency;
    uint64_t held = 0;  // of them
  };
  enum : size_t { kCut = 0, kWhole = 1 };  // those of broken chains, which go first, and others
  struct InTier {
    bool exists = false;
    bool is_out = false;
    TierTraits traits;
    std::array<Order, 2> orders;            // empty: the tier is not leaf-first
    uint64_t lease_bytes_max = UINT64_MAX;  // of others than the host's that may hold last
    uint64_t held_blocks = 0;
    CopyFigures figures;
    uint64_t published_bytes_total = 0, unlinked_bytes_total = 0, lost_total = 0;
    std::array<uint64_t, kEvictionReasonCount> evicted_blocks{};
    std::array<uint64_t, kEvictionReasonCount> evicted_bytes{};
    uint64_t evicted_dirty_images = 0, evicted_dirty_bytes = 0;
    Histogram evicted_unused_seconds{AgeBounds()};
  };

  InTier& At(TierId tier) { return tiers_[IndexOf(tier)]; }
  const InTier& At(TierId tier) const { return tiers_[IndexOf(tier)]; }

  // Blocks and chains.
  absl::Status CheckPlaceInChain(const BlockClaim& claim) const;
  // Linked or not; null: the name is not known.
  Block* FindKnown(const BlockName& name) const { return names_.Find(name); }
  Block* At(uint32_t slot) { return slot == kNoSlot ? nullptr : blocks_.At(slot); }
  Block* Know(const BlockName& name);  // as missing, if it is new
  void ForgetIfUnused(Block* block);
  void JoinCircle(Block* parent, Block* child);
  void LeaveCircle(Block* parent, Block* child);
  void TakePlace(Block* block, const BlockClaim& claim);
  void LosePlace(Block* block);
  absl::Status MakeRoom(Block* block, absl::Time now);
  // Blocks go from the device and then from the host tier while those that are not at rest take too
  // much. Nothing is lost of those that the lasting tier has.
  void MakeRoomForAwake(const BlockName& newcomer);
  void LinkBlock(Block* block, absl::Time now);
  void RemoveBlock(Block* block);  // REQUIRES: no images
  void CountChildIn(const Block& child, TierId tier, int sign);
  void SetCut(Block* block, bool is_cut);
  void SetUnsettled(Block* block, uint32_t count);
  // False: `visits` are spent, and there is more.
  bool SettleCuts(Visits& visits);
  // Into or out of the tier's order, as its copies and children are now.
  void Requeue(Block* block, TierId tier);

  // Sleep. Makes it awake, as the only way to an AwakeBlock.
  AwakeBlock& Awake(Block* block);
  void WakeImage(Block* block, const RestingImage& resting);
  // It may have come to rest: Rest() is to look at it.
  void NoteIdle(Block* block);
  void NoteIdle(const Image* image) {
    if (image->block != nullptr) {
      NoteIdle(image->block);
    }
  }
  bool MayRest(const Block& block) const;
  void PutToRest(Block* block);
  uint64_t OffsetOf(const RestingImage& resting) const;
  // It is at rest, and none of its offsets is from `begin` up to `end`.
  bool RestsOutside(const Block& block, uint64_t begin, uint64_t end) const;
  // Of the lasting tier, in which a block that rests lies.
  uint64_t PartsOf(const Block& block) const;

  // Images and copies.
  // A record of each, which nothing counts yet.
  Image* TakeImage(Block* block, const ImageFacts& facts);
  Copy* TakeCopy(Image* image);
  Image* LinkImage(Block* block, const ImageFacts& facts);
  void LinkCopy(Image* image, NewCopy copy);
  // Returns the bytes that are free now. The image may be left without copies: Settle().
  uint64_t UnlinkCopy(Copy* copy);
  // Takes an image out of its block if no copy may be its last, and the block with its last image.
  void Settle(Image* image);
  void ForgetImage(Image* image);  // REQUIRES: no copies; out of the block already
  void FreeCopy(Copy* copy);
  // The first copy of a block in a tier has come, or the last one goes.
  void Tell(const Copy& copy, bool is_stored);
  void FreeIfUnused(Image* image);
  bool IsLast(const Copy& copy) const;
  void SetHeld(Copy* copy, bool is_held);
  // Its last copy may not go.
  static bool IsKept(const Image& image);
  void RefreshHeld(Image* image);
  void RefreshHeld(Block* block);
  // It has a copy that the lasting tier takes, has not, and does not get already.
  bool IsMissing(const Image& image) const;
  bool HasDirty(const Block& block) const;
  // The first to be in the lasting tier of those that the host tier can do without: nothing of it
  // is held, and all of it is there. Null: there is none, or `visits` are spent.
  Block* OldestClean(Visits& visits);
  // Into or out of the queues of those that the lasting tier lacks, or has too; out of that of
  // those to be encoded where the host tier has nothing of it.
  void RefreshQueues(Image* image);
  // Those that were let go are to be there after all.
  void WantAgain(Block* block);
  // An image of it is let go for want of the write budget.
  static bool HasWithheld(const Block& block);
  // Moves an image that the lasting tier lacks to the front of those that wait. False: it never
  // takes it as it is.
  bool Hurry(Image* image);
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
  bool IsCut(const BlockName* newcomer) const;
  // Whether the follower's chain passes the block; `if_spent` where `visits` do not suffice to
  // tell.
  bool IsBefore(const Block& block, const Block& follower, bool if_spent, Visits& visits) const;
  Block* OldestUnheld(Eviction& eviction, Visits& visits);
  Block* OldestLeaf(Order& order, TierId tier, Visits& visits);
  Block* PastHeldLeaves(Order& order, const Eviction& eviction, Visits& visits);
  // The nearest ancestor in the tier that is not held and may go for the newcomer; null: there is
  // none, or `visits` are spent. *is_being_put turns true where a put follows on it.
  Block* UnheldAncestor(Block& block, const Eviction& eviction, bool* is_being_put, Visits& visits);
  // The linked copy at that place of a tier. Null: there is none.
  Copy* FindCopy(TierId tier, const ImageFacts& image, uint64_t offset);
  // Drops a block's copies in a tier. Returns the bytes that are free now.
  uint64_t EvictFrom(Block* block, TierId tier, EvictionReason reason);
  void CountEvicted(const Block& block, TierId tier, EvictionReason reason);
  // Drops a whole block, if one may go. False: none.
  bool EvictAnywhere(EvictionReason reason, const BlockName& newcomer, Visits& visits);

  EventLog& events_;
  const Clock& clock_;
  const uint64_t blocks_max_, images_max_, awake_bytes_max_;
  BlockSlab blocks_;
  Slab<AwakeBlock, &AwakeBlock::next_free> awake_;
  Slab<Image, &Image::next_free> images_;
  Slab<Copy, &Copy::next_free> copies_;
  NameTable names_{blocks_};
  ImageKinds kinds_;
  uint64_t awake_count_ = 0;
  uint64_t resting_many_bytes_ = 0;
  std::vector<uint32_t> idle_;            // slots that Rest() is to look at
  std::vector<Block*> unsettled_;         // those with children that may disagree
  uint32_t search_ = 0;                   // of the last search for a window
  std::array<InTier, kTierCount> tiers_;  // by IndexOf(tier)
  std::optional<TierId> lasting_;
  CopyTier* lasting_tier_ = nullptr;
  uint64_t lasting_image_bytes_max_ = 0;
  ImageQueue pending_{&Image::is_encode_pending};  // goes before the others
  ImageQueue uncopied_{&Image::is_uncopied};
  ImageQueue clean_{&Image::is_clean};  // in the host tier and in the lasting one
  uint64_t uses_ = 0;

  IndexFigures figures_;
  absl::flat_hash_map<uint64_t, IndexFigures> figures_by_space_;
  std::array<RecipeFigures, 64>
      figures_by_recipe_{};  // by place in codecs::AllRecipes(), then in kRecipeFamilies
  uint64_t expiring_count_ = 0, expired_total_ = 0;
  Histogram reuse_seconds_{AgeBounds()};
};

}  // namespace cairn
