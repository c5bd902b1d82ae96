// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks: map, chains, copies, recency, pins and statistics. BlockIndex guards it with its
// lock. The life of a copy: docs/internals/adr/0012-images-and-copies.md.
//
// Chains are kept by name. A parent that is not present is still known by name (see Block), so that
// it knows its children once it is published, or published again. Links only join first positions
// that are one block apart, so a chain cannot be a circle.
//
// A chain is broken at a block that is neither present nor expected. Blocks behind it are useless
// until that block comes, and are evicted first. When a block appears or disappears, the state of
// its followers changes later: PropagateOrphans() updates a few at a time.
//
// Each tier has its own order, child counts and statistics.
//
// A block that is only in the persistent tier and unused is at rest (block.h). Finding it,
// comparing its slices, touching it and following its chain do not wake it.
//
// Thread-safety: Thread-compatible (the index's lock).
// Locks:         frees extents while that lock is held: index < arena.

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
#include "service/index/event_log.h"
#include "service/index/figures.h"
#include "service/index/image_kinds.h"
#include "service/index/image_queue.h"
#include "service/index/name_table.h"
#include "service/index/new_image.h"
#include "service/index/recency.h"
#include "service/index/slab.h"
#include "service/index/visits.h"
#include "service/tier/block_name.h"
#include "service/tier/tier.h"

namespace cairn {

// Families of recipes with more names than a label may have values: those with a profile and those
// with a bank.
inline constexpr std::string_view kRecipeFamilies[] = {"cairn", "patternkv"};

// One eviction, which may take several holds of the lock.
struct Eviction {
  TierId tier = TierId::kHost;
  EvictionReason reason = EvictionReason::kCapacity;
  const BlockName* newcomer = nullptr;  // null: for no block
  // The value of uses() when every leaf was held: leaves examined after it need not be examined
  // again.
  uint64_t since = UINT64_MAX;
  bool is_past_leaves = false;  // the last hold examined the ancestors of held leaves
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

class BlockTable {
 public:
  // Borrows the tiers for the call, except the persistent one, which must outlive this, as must the
  // clock and `events`. Reports to `events` which blocks enter and leave tiers.
  BlockTable(std::span<CopyTier* const> tiers, uint64_t blocks_max, uint64_t images_max,
             const Clock& clock, EventLog& events, uint64_t awake_bytes_max);

  // Returns null if the block has no images.
  Block* Find(const BlockName& name) const;
  // Like Find(), but null if the block has expired.
  Block* FindUnexpired(const BlockName& name) const;
  bool IsExpired(const Block& block) const;
  // Unlinks the block if it has expired.
  void DropExpired(Block* block);
  // Blocks with an expiry.
  uint64_t expiring_count() const { return expiring_count_; }
  // Like BlockIndex::LeasedAfter(), as far as `visits` allow.
  std::vector<BlockName> LeasedAfter(const BlockName& name, size_t count, Visits& visits) const;
  // Returns null if none is known.
  const Block* ParentOf(const Block& block) const;
  Block* ParentOf(Block& block) { return At(block.parent); }

  // --- Functions that leave a block at rest. REQUIRES: linked.

  // In the order of publication. Points into `scratch` if the block is at rest.
  absl::Span<const ImageRef> RefsOf(const Block& block, ImageRefs* scratch) const;
  // Describes its image at that place in RefsOf().
  struct Brief {
    TierId tier = TierId::kHost;  // of the best copy
    uint64_t image_bytes = 0;     // of the best copy
    uint64_t lease_bytes = 0;     // in the host tier, if the image is not leased yet
  };
  Brief BriefOf(const Block& block, size_t place) const;
  // Called with each image and its best copy.
  using Described = absl::FunctionRef<void(const ImageFacts& facts, const CopyFacts& copy,
                                           uint32_t pin_count, const SideObject* side_object)>;
  void Describe(const Block& block, Described described) const;
  bool HasCopiesIn(const Block& block, TierId tier) const;

  // --- Rest

  // Wakes a block and returns its images as records. They stay while something needs them, else
  // until the next Rest().
  const ImageRefs& Wake(Block* block);
  // Puts blocks to rest that nothing uses any more. REQUIRES: no caller has an Image or a Copy that
  // is neither pinned nor otherwise kept. Cost: proportional to the blocks woken or released since
  // the last call.
  void Rest();

  // ---
  // Like BlockIndex::Check().
  absl::StatusOr<std::optional<uint64_t>> Check(const BlockClaim& claim) const;
  // Adds an image, and its block if needed; evicts blocks if the table is full.
  // REQUIRES: Check(image.claim) is nullopt. Errors: ResourceExhausted (full, and nothing can be
  // evicted), Unavailable (the tier is out).
  absl::StatusOr<Image*> Add(NewImage image, absl::Time now);
  // Begins a put: until EndReservation() its block counts as present for its followers, and the
  // last copies of the previous block are held. REQUIRES: Check(claim) is not an error.
  Block* ReservePut(const BlockClaim& claim);
  void EndReservation(Block* block);
  // Unlinks a block in every tier. Its copies are freed now or at their last unpin. Returns the
  // bytes that were freed now.
  uint64_t UnlinkBlock(Block* block);

  // Replaces the copy by another one in the same tier. REQUIRES, like the next function: the copy
  // is linked.
  void Replace(Copy* copy, NewCopy successor);
  // Removes a copy that is damaged, or whose device is out; and its image with the last copy.
  void Lose(Copy* copy);
  // Removes all copies of a block in a tier, or those in [begin, end), as lost.
  void LoseIn(Block* block, TierId tier, uint64_t begin = 0, uint64_t end = UINT64_MAX);
  // A tier that is out gets no copies.
  void SetOut(TierId tier, bool is_out) { At(tier).is_out = is_out; }

  // Like CopyWriter: returns false if the tier has a copy, gets one already, or is out.
  bool BeginCopy(Image* image, TierId tier);
  // Returns false, and frees the successor, if the image is gone or the tier is out.
  bool FinishCopy(Image* image, TierId tier, NewCopy copy);
  void GiveUpCopy(Image* image, TierId tier);

  void Touch(Block* block, absl::Time now);
  void Pin(Image* image);
  void Unpin(Image* image);
  void Pin(Copy* copy);
  void Unpin(Copy* copy);
  // The bytes that a lease counts do not change until its end, except for a new copy: a deleted
  // image still counts.
  void LeasePin(Image* image);
  void LeaseUnpin(Image* image);

  // The number of images with a pending encoding, and the one that has waited longest; null: none.
  uint64_t pending_count() const { return pending_.count(); }
  Image* FirstPending() const { return pending_.front(); }
  // REQUIRES: it has a copy in the host tier.
  void SetPending(Image* image);
  void ClearPending(Image* image);

  // The number of images that have a copy in the host tier, are final, are not in the persistent
  // tier and are not being written to it.
  uint64_t uncopied_count() const { return uncopied_.count(); }
  // Returns the first of them whose previous block is in the persistent tier, being written to it,
  // or not in the host tier. An image that waits for its previous block goes behind all others and
  // is examined once a round. Null: none, or `visits` are spent.
  Image* NextUncopied(uint32_t round, Visits& visits);
  // The only setter of this state. kNot: the image counts again as one that the persistent tier
  // lacks.
  void SetLetGo(Image* image, LetGo let_go);
  // Like BlockIndex::Expedite(), as far up the chain as `visits` allow.
  WriteDownProgress Expedite(const BlockName& name, uint16_t group, const codecs::Slice& slice,
                             Visits& visits);
  // Empty: there is no persistent tier.
  std::optional<TierId> lasting() const { return lasting_; }

  // Like Evictor, as far as `visits` allow; EvictOldest() continues where they were spent.
  uint64_t EvictOldest(Eviction& eviction, Visits& visits);
  bool EvictWindow(Arena& arena, uint64_t bytes, const BlockName* newcomer, uint64_t* bytes_passed);
  bool EvictCopy(TierId tier, const ImageFacts& image, uint64_t offset, EvictionReason reason);
  Evictor::Moved MoveCopy(TierId tier, const ImageFacts& image, uint64_t offset, TierExtent& to);
  void LoseCopy(TierId tier, const ImageFacts& image, uint64_t offset);

  uint64_t uses() const { return uses_; }
  // All memory of the table, including free entries.
  uint64_t bytes() const;
  // The additional memory of blocks that are not at rest.
  uint64_t awake_bytes() const {
    return awake_.taken_bytes() + images_.taken_bytes() + copies_.taken_bytes();
  }
  // Until then it may be woken for a lease.
  bool is_full_of_awake() const { return awake_bytes() >= awake_bytes_max_; }
  uint32_t slot_count() const { return blocks_.slot_count(); }
  // Returns null if no linked block is there.
  Block* AtSlot(uint32_t slot);
  const Block* AtSlot(uint32_t slot) const;

  const IndexFigures& figures() const { return figures_; }
  IndexFigures figures(uint64_t space_id) const;
  const CopyFigures& figures(TierId tier) const { return At(tier).figures; }
  uint64_t leased_bytes() const { return figures(TierId::kHost).leased_bytes; }
  uint64_t lost_count(TierId tier) const { return At(tier).lost_total; }
  // More of the host tier is leased than `host_bytes_max`, or more than kPinnedPercentMax of
  // another tier.
  bool IsLeasedPast(uint64_t host_bytes_max) const;
  void Report(MetricSink& sink) const;

 private:
  struct RecipeFigures {
    uint64_t image_count = 0, image_bytes = 0, source_bytes = 0;
  };
  // Blocks of a leaf-first tier that have no children there.
  struct Order {
    std::unique_ptr<Recency> recency;
    uint64_t held = 0;  // of them
  };
  enum : size_t {
    kOrphaned = 0,
    kWhole = 1
  };  // of broken chains, which are evicted first; and others
  struct InTier {
    bool exists = false;
    bool is_out = false;
    TierTraits traits;
    std::array<Order, 2> orders;  // empty: the tier is not leaf-first
    // Of tiers that may hold the last copy, except the host tier.
    uint64_t lease_bytes_max = UINT64_MAX;
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
  // Linked or not; null: the name is unknown.
  Block* FindKnown(const BlockName& name) const { return names_.Find(name); }
  Block* At(uint32_t slot) { return slot == kNoSlot ? nullptr : blocks_.At(slot); }
  Block* Know(const BlockName& name);  // as missing, if it is new
  void ForgetIfUnused(Block* block);
  void JoinCircle(Block* parent, Block* child);
  void LeaveCircle(Block* parent, Block* child);
  void EnterChain(Block* block, const BlockClaim& claim);
  void LosePlace(Block* block);
  absl::Status MakeRoom(Block* block, absl::Time now);
  // Evicts blocks from the GPU tier and then from the host tier while blocks that are not at rest
  // use too much memory. Blocks in the persistent tier lose nothing.
  void MakeRoomForAwake(const BlockName& newcomer);
  void LinkBlock(Block* block, absl::Time now);
  void RemoveBlock(Block* block);  // REQUIRES: no images
  void CountChildIn(const Block& child, TierId tier, int sign);
  void SetCut(Block* block, bool is_orphaned);
  void SetUnsettled(Block* block, uint32_t count);
  // Returns false if `visits` are spent before all are updated.
  bool PropagateOrphans(Visits& visits);
  // Adds the block to the tier's order or removes it, according to its copies and children.
  void Requeue(Block* block, TierId tier);

  // Rest. Makes a block awake; only this makes an AwakeBlock.
  AwakeBlock& Awake(Block* block);
  void WakeImage(Block* block, const RestingImage& resting);
  // Notes that it may be unused: Rest() will look at it.
  void NoteIdle(Block* block);
  void NoteIdle(const Image* image) {
    if (image->block != nullptr) {
      NoteIdle(image->block);
    }
  }
  bool MayRest(const Block& block) const;
  void PutToRest(Block* block);
  uint64_t OffsetOf(const RestingImage& resting) const;
  // Returns whether it is at rest, with no offset in [begin, end).
  bool RestsOutside(const Block& block, uint64_t begin, uint64_t end) const;
  // The parts of the persistent tier that a block at rest lies in.
  uint64_t PartsOf(const Block& block) const;

  // Images and copies. Makes a record that nothing counts yet.
  Image* TakeImage(Block* block, const ImageFacts& facts);
  Copy* TakeCopy(Image* image);
  Image* LinkImage(Block* block, const ImageFacts& facts);
  void LinkCopy(Image* image, NewCopy copy);
  // Returns the bytes that were freed now. May leave the image without copies: call UnlinkIfLost().
  uint64_t UnlinkCopy(Copy* copy);
  // Unlinks an image without a copy that may be its last, and its block with the last image.
  void UnlinkIfLost(Image* image);
  void ForgetImage(Image* image);  // REQUIRES: no copies, not in the block any more
  void FreeCopy(Copy* copy);
  // Emits the event that a block got its first copy in a tier, or loses its last.
  void EmitEvent(const Copy& copy, bool is_stored);
  void FreeIfUnused(Image* image);
  bool IsLast(const Copy& copy) const;
  void SetHeld(Copy* copy, bool is_held);
  // Returns whether its last copy must not be evicted.
  static bool IsKept(const Image& image);
  void RefreshHeld(Image* image);
  void RefreshHeld(Block* block);
  // Returns whether it has a copy that the persistent tier accepts, lacks and does not get already.
  bool IsMissing(const Image& image) const;
  bool HasDirty(const Block& block) const;
  // Returns the block that the host tier can drop and that was written to the persistent tier
  // first: it is complete there and not held. Null: none, or `visits` are spent.
  Block* OldestClean(Visits& visits);
  // Updates the queues of the images that the persistent tier lacks, or has as well. Removes the
  // image from the queue of pending encodings if the host tier does not have it.
  void RefreshQueues(Image* image);
  // Images that were let go are to be written after all.
  void WantAgain(Block* block);
  // Returns whether an image of it is let go because the write budget was low.
  static bool HasWithheld(const Block& block);
  // Moves an image that the persistent tier lacks to the front of its queue. Returns false if the
  // tier never accepts it as it is.
  bool Hurry(Image* image);
  // Returns an image of the block that must be in the persistent tier before its children. Null:
  // none.
  Image* WaitsFor(const Block& parent);
  // Returns whether it is the last copy, apart from tiers that do not persist.
  bool IsDirty(const Copy& copy) const {
    return lasting_.has_value() && copy.facts.tier == TierId::kHost &&
           copy.image->copies[IndexOf(*lasting_)] == nullptr;
  }
  void CountLease(Image* image, TierId tier, uint64_t bytes);
  void Count(const Copy& copy, int sign);

  void ReportTier(TierId id, MetricSink& sink) const;

  // Eviction.
  bool IsOrphaned(const BlockName* newcomer) const;
  // Returns whether the follower's chain contains the block; `if_spent` if `visits` do not suffice
  // to tell.
  bool IsBefore(const Block& block, const Block& follower, bool if_spent, Visits& visits) const;
  Block* OldestUnheld(Eviction& eviction, Visits& visits);
  Block* OldestLeaf(Order& order, TierId tier, Visits& visits);
  Block* PastHeldLeaves(Order& order, const Eviction& eviction, Visits& visits);
  // Returns the nearest ancestor in the tier that is not held and may be evicted for the newcomer;
  // null: none, or `visits` are spent. Sets *is_being_put if a put follows it.
  Block* UnheldAncestor(Block& block, const Eviction& eviction, bool* is_being_put, Visits& visits);
  // Returns the linked copy at that place of a tier, or null.
  Copy* FindCopy(TierId tier, const ImageFacts& image, uint64_t offset);
  // Evicts a block's copies in a tier. Returns the bytes that were freed now.
  uint64_t EvictFrom(Block* block, TierId tier, EvictionReason reason);
  void CountEvicted(const Block& block, TierId tier, EvictionReason reason);
  // Evicts a whole block. Returns false if none can be evicted.
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
  std::vector<uint32_t> idle_;            // slots that Rest() will look at
  std::vector<Block*> stale_parents_;     // blocks with children that may disagree
  uint32_t search_ = 0;                   // of the last search for a window
  std::array<InTier, kTierCount> tiers_;  // by IndexOf(tier)
  std::optional<TierId> lasting_;
  CopyTier* lasting_tier_ = nullptr;
  uint64_t lasting_image_bytes_max_ = 0;
  ImageQueue pending_{&Image::is_encode_pending};  // goes before the others
  ImageQueue uncopied_{&Image::is_uncopied};
  ImageQueue clean_{&Image::is_clean};  // in both the host tier and the persistent one
  uint64_t uses_ = 0;

  IndexFigures figures_;
  absl::flat_hash_map<uint64_t, IndexFigures> figures_by_space_;
  std::array<RecipeFigures, 64>
      figures_by_recipe_{};  // by place in codecs::AllRecipes(), then in kRecipeFamilies
  uint64_t expiring_count_ = 0, expired_total_ = 0;
  Histogram reuse_seconds_{AgeBounds()};
};

}  // namespace cairn
