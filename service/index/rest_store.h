// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of the index: of blocks, images and copies. While a block is in use, its records are
// complete; while it is at rest, they are small (block.h). Part of BlockIndex.
//
// State: the records, and the blocks that may have become unused since the last Rest().
//
// Invariants:
//
// - A block is awake, at rest, or neither. A block that is neither is a name without images.
// - A block at rest is linked, and has copies in the persistent tier only. None of its copies has a
//   pin, put or writer, or is in a queue. No child of the block has copies in another tier.
// - Waking a block or putting it to rest changes no statistics and emits no event.
// - Each image of a block at rest counts in one ImageKind, which keeps the side object alive.
//
// Finding a block, comparing its slices, touching it and following its chain do not wake it.
//
// Thread-safety: Thread-compatible (the index's lock). Locks: index < side objects.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "service/index/block.h"
#include "service/index/name_table.h"
#include "service/index/run_keys.h"
#include "service/index/side_objects.h"
#include "service/index/slab.h"
#include "service/tier/tier.h"

namespace cairn {

// Properties that most images of a space share: group, slice, recipe, side object. The images of
// blocks at rest refer to an ImageKind by number. An ImageKind exists while an image refers to it.
struct ImageKind {
  uint64_t space_id = 0;
  uint64_t source_bytes = 0;
  const SideObject* side_object = nullptr;
  codecs::Recipe recipe;
  codecs::Slice slice;
  uint16_t tokens = 0;
  uint16_t group = 0;

  friend bool operator==(const ImageKind&, const ImageKind&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const ImageKind& kind) {  // hashes the fields that differ most
    return H::combine(std::move(state), kind.space_id, kind.source_bytes, kind.side_object,
                      kind.recipe.id, kind.recipe.bits, kind.recipe.multiplier,
                      kind.slice.layer_first, kind.slice.head_first, kind.group);
  }
};

class ImageKinds {
 public:
  // Counts an image of that kind and returns the kind's number. If the kind is new, takes over
  // `side_object`.
  uint32_t Ref(const ImageKind& kind, SideObjectRef& side_object);
  // Counts one image less.
  void Unref(uint32_t number);

  // REQUIRES, here and for SideObjectOf(): an image of that kind is counted.
  const ImageKind& At(uint32_t number) const { return entries_[number].kind; }
  const SideObjectRef& SideObjectOf(uint32_t number) const { return entries_[number].side_object; }

  uint64_t bytes() const;

 private:
  struct Entry {
    ImageKind kind;
    SideObjectRef side_object;
    uint64_t image_count = 0;
  };
  std::vector<Entry> entries_;  // indexed by number
  std::vector<uint32_t> free_;
  absl::flat_hash_map<ImageKind, uint32_t> numbers_;
};

class RestStore {
 public:
  // `lasting` is the persistent tier, which must outlive this object, or null if there is none.
  // Evictions keeps awake_bytes() below `awake_bytes_max`.
  RestStore(CopyTier* lasting, uint64_t awake_bytes_max)
      : lasting_tier_(lasting), awake_bytes_max_(awake_bytes_max) {
    if (lasting != nullptr) {
      lasting_ = lasting->id();
    }
  }

  // --- Blocks

  // Returns a new block without name, place in a chain, or images.
  Block* TakeBlock();
  // REQUIRES: the block has no images.
  void ReturnBlock(Block* block);
  BlockSlab& blocks() { return blocks_; }
  Block* At(uint32_t slot) { return slot == kNoSlot ? nullptr : blocks_.At(slot); }
  // Returns the block before this one in its chain, or null if none is known.
  Block* ParentOf(Block& block) { return At(block.parent); }
  const Block* ParentOf(const Block& block) const {
    return block.parent == kNoSlot ? nullptr : blocks_.At(block.parent);
  }
  uint32_t slot_count() const { return blocks_.slot_count(); }
  // Returns null if no linked block is there.
  Block* LinkedAt(uint32_t slot);
  const Block* LinkedAt(uint32_t slot) const;

  // The number of uses of all blocks so far. It orders Block::last_use and Copy::linked_at.
  uint64_t uses() const { return uses_; }
  void Use(Block* block) { block->last_use = ++uses_; }

  // --- Functions that do not wake a block. REQUIRES: linked.

  // Returns the images in the order of publication. If the block is at rest, the result points into
  // `scratch`.
  absl::Span<const ImageRef> RefsOf(const Block& block, ImageRefs* scratch) const;
  // Describes the image at index `place` of RefsOf().
  struct Brief {
    TierId tier = TierId::kHost;  // the tier of the best copy
    uint64_t image_bytes = 0;     // the size of the best copy
    uint64_t lease_bytes = 0;  // bytes that a lease would add in the host tier; 0 if leased already
  };
  Brief BriefOf(const Block& block, size_t place) const;
  // A function that is called with each image and its best copy.
  using Described = absl::FunctionRef<void(const ImageFacts& facts, const CopyFacts& copy,
                                           uint32_t pin_count, const SideObject* side_object)>;
  void Describe(const Block& block, Described described) const;
  bool HasCopiesIn(const Block& block, TierId tier) const;
  // Returns whether the block was used after one of its copies was written.
  bool IsUsed(const Block& block) const;
  // Returns whether the block is at rest and has no image in [begin, end) of the persistent tier.
  bool RestsOutside(const Block& block, uint64_t begin, uint64_t end) const;
  // Returns the parts of the persistent tier that have images of a block at rest.
  uint64_t PartsOf(const Block& block) const;

  // --- Waking, and going to rest

  // Makes a block awake.
  AwakeBlock& Awake(Block* block);
  // Wakes a block and returns its images. Their records stay while something uses them, and at
  // least until the next Rest().
  const ImageRefs& Wake(Block* block) { return Awake(block).images; }
  // Notes that the block may be unused. The next Rest() checks it.
  void NoteIdle(Block* block);
  void NoteIdle(const Image* image) {
    if (image->block != nullptr) {
      NoteIdle(image->block);
    }
  }
  // Puts the noted blocks to rest if nothing uses them any more. REQUIRES: the caller no longer
  // uses an Image or a Copy, unless something such as a pin keeps it alive. Cost: proportional to
  // the number of blocks woken or released since the last call.
  void Rest();

  // --- Records of images and copies. These functions do not count them in statistics.

  Image* TakeImage(Block* block, const ImageFacts& facts);
  // Returns the record if nothing needs it.
  void ReturnIfUnused(Image* image);
  Copy* TakeCopy(Image* image);
  // Also frees the copy's extent.
  void ReturnCopy(Copy* copy);

  // --- Names that engines have for linked blocks

  // Null: none.
  EngineNamesRef NamesOf(const Block& block) const {
    const auto found = names_.find(block.slot);
    return found == names_.end() ? nullptr : found->second;
  }
  // Sets the names, unless the block has names already. Returns true if it had none. REQUIRES:
  // linked.
  bool SetNames(const Block& block, EngineNamesRef names);
  void ForgetNames(const Block& block);
  uint64_t names_bytes() const { return names_bytes_; }

  // --- Runs, for members of a cluster

  // Keeps the run of each block from now on. REQUIRES: there is no block.
  void KeepRuns() { runs_.Begin(); }
  bool keeps_runs() const { return runs_.is_kept(); }
  // Call it when the block has got its place in a chain. `run` may be known from elsewhere, or
  // proto::kNoRun.
  void EnterRun(const Block& block, uint64_t run);
  // Returns the run of the block. If it is unknown, looks for it in up to kRunClimbMax blocks
  // before it, and keeps what it finds. Returns proto::kNoRun if it is not found there. Returns
  // nullopt if `visits` are spent before.
  std::optional<uint64_t> LearnRun(const Block& block, Visits& visits);
  // The run if it is known, or proto::kNoRun.
  uint64_t RunOf(const Block& block) const { return runs_.At(block.slot); }

  // --- Figures

  uint64_t awake_count() const { return awake_.taken_count(); }
  // The memory of all records, used or free.
  uint64_t bytes() const;
  // The additional memory of awake blocks.
  uint64_t awake_bytes() const {
    return awake_.taken_bytes() + images_.taken_bytes() + copies_.taken_bytes();
  }
  uint64_t awake_bytes_max() const { return awake_bytes_max_; }
  // The persistent tier. Null or nullopt if there is none.
  CopyTier* lasting_tier() const { return lasting_tier_; }
  std::optional<TierId> lasting() const { return lasting_; }
  // While this is true, a lease does not wake blocks at rest.
  bool is_full_of_awake() const { return awake_bytes() >= awake_bytes_max_; }

 private:
  void WakeImage(Block* block, const RestingImage& resting);
  bool MayRest(const Block& block) const;
  void PutToRest(Block* block);

  CopyTier* const lasting_tier_;
  std::optional<TierId> lasting_;
  const uint64_t awake_bytes_max_;
  BlockSlab blocks_;
  Slab<AwakeBlock, &AwakeBlock::next_free> awake_;
  Slab<Image, &Image::next_free> images_;
  Slab<Copy, &Copy::next_free> copies_;
  ImageKinds kinds_;
  uint64_t uses_ = 0;
  uint64_t resting_many_bytes_ = 0;
  absl::flat_hash_map<uint32_t, EngineNamesRef> names_;  // keyed by slot
  uint64_t names_bytes_ = 0;
  RunKeys runs_;
  std::vector<uint32_t> idle_;  // slots of blocks that Rest() will check
};

}  // namespace cairn
