// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks themselves: the map, chains, recency, pins and figures. What BlockIndex guards with
// its lock.
//
// Chains are kept by name. A block whose parent is not resident counts under the parent's name
// (`orphans`), so that a parent published later, or again, knows its children. Links only join
// first positions that are one block apart, so a chain cannot be a circle.
//
// Thread-safety: Thread-compatible (the index's lock).
// Locks:         gives extents back while that lock is held: index < arena.

#include <array>
#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "codecs/recipe/recipe.h"
#include "service/index/block.h"
#include "service/index/figures.h"
#include "service/index/new_image.h"
#include "service/index/recency.h"
#include "service/index/slab.h"
#include "service/tier/host_tier.h"

namespace cairn {

// Recipes of more names than a label may have values: those that need a profile, and those that
// need a bank.
inline constexpr std::string_view kRecipeFamilies[] = {"cairn", "patternkv"};

class BlockTable {
 public:
  explicit BlockTable(uint64_t blocks_max);

  Block* Find(const BlockName& name) const;
  // As BlockIndex::Check().
  absl::StatusOr<std::optional<uint64_t>> Check(const BlockClaim& claim) const;
  // Adds an image, and its block if need be, evicting one when the table is full.
  // REQUIRES: Check(image.claim) is nullopt. ResourceExhausted: full, and nothing may go.
  absl::StatusOr<Image*> Add(NewImage image, absl::Time now);
  // Takes an image out of sight, and its block with the last one; freed now or at the last unpin.
  void UnlinkImage(Image* image);
  // The same for all images of a block. Returns the arena bytes that are free now.
  uint64_t UnlinkBlock(Block* block);
  // The bytes of a linked image become others of the same slice. Returns the new image.
  Image* Swap(Image* image, const codecs::Recipe& recipe, Extent extent, SideObjectRef side_object);

  void Touch(Block* block, absl::Time now);
  void Pin(Image* image);
  void Unpin(Image* image);
  void LeasePin(Image* image);
  void LeaseUnpin(Image* image);

  // Images whose encoding is pending.
  uint64_t pending_count() const { return pending_count_; }
  void SetPending(Image* image);
  void ClearPending(Image* image);

  // As Evictor, as far as `visits` go; EvictOldest() goes on where they were spent. Once every leaf
  // is pinned it has nothing more to say of those that it looked at after `since`, a uses().
  uint64_t EvictOldest(EvictionReason reason, uint64_t since, Visits& visits);
  bool EvictWindow(Arena& arena, uint64_t bytes, uint64_t* bytes_passed);
  uint64_t uses() const { return uses_; }
  bool is_every_leaf_pinned() const { return pinned_queued_ == recency_.count(); }

  uint32_t slot_count() const { return blocks_.slot_count(); }
  // Null where no linked block is.
  Block* AtSlot(uint32_t slot);
  const Block* AtSlot(uint32_t slot) const;

  const IndexFigures& figures() const { return figures_; }
  IndexFigures figures(uint64_t space_id) const;
  uint64_t pinned_bytes() const { return pinned_bytes_; }
  uint64_t leased_bytes() const { return leased_bytes_; }
  void Report(MetricSink& sink) const;

 private:
  struct Orphans {
    uint32_t count = 0;
    uint64_t first_position = 0;  // of every one of them
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

  absl::Status CheckPlaceInChain(const BlockClaim& claim) const;
  Block* LinkBlock(const BlockClaim& claim, absl::Time now);
  void RemoveBlock(Block* block);  // REQUIRES: no images
  void AddChild(const BlockName& parent, uint64_t first_position);
  void RemoveChild(const BlockName& parent);
  Image* LinkImage(Block* block, const ImageFacts& facts, Extent extent, SideObjectRef side_object);
  void FreeImage(Image* image);
  // Out of figures and pins of the block; returns bytes that are free now.
  uint64_t ForgetImage(Image* image);
  void Count(const ImageFacts& facts, int sign);
  Block* OldestUnpinned(uint64_t since, Visits& visits);
  // The nearest ancestor without pins; null: there is none, or `visits` are spent.
  Block* UnpinnedAncestor(const Block& block, Visits& visits);

  const uint64_t blocks_max_;
  Slab<Block> blocks_;
  Slab<Image> images_;
  absl::flat_hash_set<Block*, NameHash, NameEqual> by_name_;
  absl::flat_hash_map<BlockName, Orphans> orphans_;
  Recency recency_;  // blocks without resident children
  uint64_t uses_ = 0;

  IndexFigures figures_;
  absl::flat_hash_map<uint64_t, IndexFigures> figures_by_space_;
  std::array<RecipeFigures, 64>
      figures_by_recipe_{};  // by place in codecs::AllRecipes(), then in kRecipeFamilies
  uint64_t pinned_blocks_ = 0;
  uint64_t pinned_queued_ = 0;  // of those, in recency_
  uint64_t pinned_bytes_ = 0;
  uint64_t leased_bytes_ = 0;
  uint64_t pending_count_ = 0;
  uint64_t published_bytes_total_ = 0;
  uint64_t unlinked_bytes_total_ = 0;
  std::array<uint64_t, kEvictionReasonCount> evicted_blocks_{};
  std::array<uint64_t, kEvictionReasonCount> evicted_bytes_{};
};

}  // namespace cairn
