// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of the index: of blocks, images and copies, in full while they are in use, small
// while they are at rest (block.h). Part of BlockIndex.
//
// State: the records, and the blocks that may have come to rest since the last Rest().
//
// Invariants:
//
// - A block is awake, at rest, or neither: a name without images that nothing needs.
// - A block at rest is linked and has copies in the persistent tier only; no pin, put, writer or
//   queue has any of them, and no child is counted in another tier.
// - To wake a block and to put it to rest changes no figure and no event: its copies stay counted.
// - Each image of a block at rest counts in one ImageKind, which holds the side object for them.
//
// Finding a block at rest, comparing its slices, touching it and following its chain do not wake
// it.
//
// Thread-safety: Thread-compatible (the index's lock).
// Locks:         index < side objects.

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
#include "service/index/side_objects.h"
#include "service/index/slab.h"
#include "service/tier/tier.h"

namespace cairn {

// Properties that most images of a space share: group, slice, recipe, side object. Images of blocks
// at rest refer to them by number. An entry lives while an image refers to it.
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
  friend H AbslHashValue(H state, const ImageKind& kind) {  // of the most distinctive fields
    return H::combine(std::move(state), kind.space_id, kind.source_bytes, kind.side_object,
                      kind.recipe.id, kind.recipe.bits, kind.recipe.multiplier,
                      kind.slice.layer_first, kind.slice.head_first, kind.group);
  }
};

class ImageKinds {
 public:
  // Adds an image of that kind. Takes the reference to the kind's side object if it is the first.
  uint32_t Ref(const ImageKind& kind, SideObjectRef& side_object);
  // Removes an image of it.
  void Unref(uint32_t number);

  // REQUIRES, like the next: an image is of that kind.
  const ImageKind& At(uint32_t number) const { return entries_[number].kind; }
  const SideObjectRef& SideObjectOf(uint32_t number) const { return entries_[number].side_object; }

  uint64_t bytes() const;

 private:
  struct Entry {
    ImageKind kind;
    SideObjectRef side_object;
    uint64_t image_count = 0;
  };
  std::vector<Entry> entries_;  // by number
  std::vector<uint32_t> free_;
  absl::flat_hash_map<ImageKind, uint32_t> numbers_;
};

class RestStore {
 public:
  // `lasting`: the persistent tier, which must outlive this; null: none. `awake_bytes_max`: the
  // limit under which Evictions keeps awake_bytes().
  RestStore(CopyTier* lasting, uint64_t awake_bytes_max)
      : lasting_tier_(lasting), awake_bytes_max_(awake_bytes_max) {
    if (lasting != nullptr) {
      lasting_ = lasting->id();
    }
  }

  // --- Blocks

  // A new block has no name, no place in a chain and no images.
  Block* TakeBlock();
  // REQUIRES: no images.
  void ReturnBlock(Block* block);
  BlockSlab& blocks() { return blocks_; }
  Block* At(uint32_t slot) { return slot == kNoSlot ? nullptr : blocks_.At(slot); }
  // The block before it in its chain; null: none is known.
  Block* ParentOf(Block& block) { return At(block.parent); }
  const Block* ParentOf(const Block& block) const {
    return block.parent == kNoSlot ? nullptr : blocks_.At(block.parent);
  }
  uint32_t slot_count() const { return blocks_.slot_count(); }
  // Returns null if no linked block is there.
  Block* LinkedAt(uint32_t slot);
  const Block* LinkedAt(uint32_t slot) const;

  // The count of uses so far, index-wide: what Block::last_use and Copy::linked_at are compared by.
  uint64_t uses() const { return uses_; }
  void Use(Block* block) { block->last_use = ++uses_; }

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
  // Returns whether it is at rest, with no offset in [begin, end).
  bool RestsOutside(const Block& block, uint64_t begin, uint64_t end) const;
  // The parts of the persistent tier that a block at rest lies in.
  uint64_t PartsOf(const Block& block) const;

  // --- Waking, and going to rest

  // Makes a block awake.
  AwakeBlock& Awake(Block* block);
  // Wakes a block and returns its images as records. They stay while something needs them, else
  // until the next Rest().
  const ImageRefs& Wake(Block* block) { return Awake(block).images; }
  // Notes that it may be unused: Rest() will look at it.
  void NoteIdle(Block* block);
  void NoteIdle(const Image* image) {
    if (image->block != nullptr) {
      NoteIdle(image->block);
    }
  }
  // Puts blocks to rest that nothing uses any more. REQUIRES: no caller has an Image or a Copy that
  // is neither pinned nor otherwise kept. Cost: proportional to the blocks woken or released since
  // the last call.
  void Rest();

  // --- Records of images and copies, which nothing counts yet

  Image* TakeImage(Block* block, const ImageFacts& facts);
  // Returns the record if nothing needs it.
  void ReturnIfUnused(Image* image);
  Copy* TakeCopy(Image* image);
  // Frees its place, too.
  void ReturnCopy(Copy* copy);

  // --- Names that engines have for linked blocks

  // Null: none.
  EngineNamesRef NamesOf(const Block& block) const {
    const auto found = names_.find(block.slot);
    return found == names_.end() ? nullptr : found->second;
  }
  // The first names win. Returns whether the block had none. REQUIRES: linked.
  bool SetNames(const Block& block, EngineNamesRef names);
  void ForgetNames(const Block& block);
  uint64_t names_bytes() const { return names_bytes_; }

  // --- Figures

  uint64_t awake_count() const { return awake_.taken_count(); }
  // All memory of the records, including free ones.
  uint64_t bytes() const;
  // The additional memory of blocks that are not at rest.
  uint64_t awake_bytes() const {
    return awake_.taken_bytes() + images_.taken_bytes() + copies_.taken_bytes();
  }
  uint64_t awake_bytes_max() const { return awake_bytes_max_; }
  // The persistent tier; null, and empty: none.
  CopyTier* lasting_tier() const { return lasting_tier_; }
  std::optional<TierId> lasting() const { return lasting_; }
  // Blocks at rest are woken for a lease only while this is false.
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
  absl::flat_hash_map<uint32_t, EngineNamesRef> names_;  // by slot
  uint64_t names_bytes_ = 0;
  std::vector<uint32_t> idle_;  // slots that Rest() will look at
};

}  // namespace cairn
