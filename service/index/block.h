// SPDX-License-Identifier: Apache-2.0
#pragma once
// The entries of the index. All fields are guarded by the index's lock, but for those of a pinned
// copy, and of its image, that say so. docs/internals/adr/0012-images-and-copies.md has the table
// of what happens to them.
//
// Most blocks lie in the lasting tier only, and nobody uses them: such a block is at rest. Then it
// is a Block and what RestingImage says of each image, 112 bytes for one image. It is awake while
// it has an AwakeBlock, with an Image for each image and a Copy for each copy. Whoever needs those
// wakes it (BlockTable::Wake()), and at the end of each hold of the lock what nobody needs any more
// goes to rest again.

#include <array>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "service/index/pin.h"
#include "service/index/side_objects.h"
#include "service/index/slab.h"
#include "service/tier/block_name.h"
#include "service/tier/image_facts.h"
#include "service/tier/tier_extent.h"

namespace cairn {

struct Block;
struct Image;

// Whether the lasting tier is to do without an image, and why. It ends when somebody uses the
// block, and all of it is set by BlockTable::SetLetGo().
enum class LetGo : uint8_t {
  kNot,
  kDropped,   // the tier dropped its copy, which nobody had used: a child brings it back
  kWithheld,  // the write budget was short: an unused child is written without it
};

// The bytes of an image in one tier.
struct Copy {
  uint32_t slot = 0;
  uint32_t next_free = 0;     // the slab's
  Image* image = nullptr;     // immutable while pinned
  CopyFacts facts;            // immutable while pinned
  TierExtent extent;          // immutable while pinned
  SideObjectRef side_object;  // immutable while pinned; what it is coded with, if anything
  uint32_t pins = 0;          // ResidentPins
  bool is_linked = false;     // the image's; else it is leaving or lost: freed at the last unpin
  bool is_held = false;       // may not be evicted; counted as such
  uint64_t linked_at = 0;     // a count of uses, as Block::last_use
};

struct Image {
  uint32_t slot = 0;
  uint32_t next_free = 0;                     // the slab's
  ImageFacts facts;                           // immutable while it or a copy is pinned
  Block* block = nullptr;                     // null once unlinked
  std::array<Copy*, kTierCount> copies{};     // by IndexOf(tier); null: none is resident
  std::array<bool, kTierCount> is_writing{};  // a CopyWriter is at work
  std::array<uint64_t, kTierCount> leased{};  // bytes, as counted since it is leased
  uint32_t pins = 0;                          // leases included
  uint32_t lease_pins = 0;
  uint32_t users = 0;  // copies, leaving ones included, writers and pins: what keeps the record
  bool is_encode_pending = false;  // in the queue of those; it has a copy in the host tier
  LetGo let_go = LetGo::kNot;
  bool is_uncopied = false;       // in the queue of those that the lasting tier lacks
  bool is_clean = false;          // in that of those which the host tier could do without
  uint32_t passed_over = 0;       // the last round of that queue that found it to wait
  Image* queue_before = nullptr;  // in one of the three
  Image* queue_after = nullptr;

  // The copy that a get takes. REQUIRES: linked.
  const Copy& best() const {
    for (const TierId tier : kReadOrder) {
      if (const Copy* copy = copies[IndexOf(tier)]; copy != nullptr) {
        return *copy;
      }
    }
    return *copies[0];  // not reached: a linked image has a copy
  }
  Copy& best() { return const_cast<Copy&>(static_cast<const Image*>(this)->best()); }
};

// What is looked at when slices are compared, kept in the block so that images are not touched.
struct ImageRef {
  uint16_t group = 0;
  codecs::Slice slice;
  Image* image = nullptr;  // null: of a block at rest
};
using ImageRefs = absl::InlinedVector<ImageRef, 2>;
using ImageList = absl::InlinedVector<Image*, 4>;

// A block as one tier has it.
struct BlockInTier {
  static constexpr uint32_t kNotQueued = UINT32_MAX;
  uint32_t copy_count = 0;
  uint32_t child_count = 0;           // children with copies there, in a leaf-first tier
  uint32_t held_count = 0;            // of the copies
  uint32_t queue_index = kNotQueued;  // in one of the tier's orders
};

// What a block has while somebody may use it: copies in other tiers than the lasting one, pins,
// puts in flight, children that have such.
struct AwakeBlock {
  uint32_t slot = 0;
  uint32_t next_free = 0;               // the slab's
  uint32_t put_count = 0;               // puts of it in flight
  uint32_t child_put_count = 0;         // of the followers, with puts in flight
  uint32_t followers_on_their_way = 0;  // of the followers, those that are not there
  // The first so many children may disagree with is_cut.
  uint32_t unsettled = 0;
  uint32_t unsettled_index = 0;              // in BlockTable::unsettled_, if any child may disagree
  uint32_t search = 0;                       // the last search for a window that it was exempt from
  bool is_noted = false;                     // to be looked at by BlockTable::Rest()
  std::array<BlockInTier, kTierCount> in{};  // by IndexOf(tier)
  ImageRefs images;                          // in the order published
};

// An image of a block at rest.
struct RestingImage {
  uint32_t kind;  // in ImageKinds: what many images have in common
  uint32_t directory_crc;
  // The place in the lasting tier: its offset is device << 48 | page << 12.
  uint32_t page;
  uint32_t image_bytes : 27;
  uint32_t device : 5;
};

// A name that the index knows. It is one of these:
//
// - There: it has images. Only then is it linked, counted and found.
// - On its way: puts of it are in flight. Its place in its chain is known.
// - Missing: others name it as their parent. Its own parent is not known.
struct Block {
  BlockName name;
  uint32_t slot = 0;
  uint32_t next_in_bucket = kNoSlot;  // of NameTable; the slab's while it is not taken
  // The chain, as slots. Children are those that are there or on their way, in a circle from
  // first_child on.
  uint32_t parent = kNoSlot;  // none: it has none, or is missing
  uint32_t first_child = kNoSlot;
  uint32_t next_sibling = kNoSlot;
  uint32_t previous_sibling = kNoSlot;
  uint32_t follower_count = 0;       // in that circle
  uint32_t used_at_s = 0;            // since 1970
  uint32_t expires_unix_s = 0;       // the earliest of its images'; 0: never
  uint64_t first_position : 48 = 0;  // of a missing block: where its children begin
  uint64_t tokens : 16 = 0;          // of a missing block: 0
  uint64_t last_use : 48 = 0;        // a count of uses, index-wide
  uint64_t is_linked : 1 = 0;        // there
  // The chain above it is broken: it is missing, or a block before it is. True as far as
  // BlockTable::SettleCuts() got: AwakeBlock::unsettled children may disagree.
  uint64_t is_cut : 1 = 0;
  uint64_t is_used : 1 = 0;        // at rest: since its copies were written
  uint64_t has_let_go : 1 = 0;     // or had: else none of its images is let go
  uint64_t resting_count : 7 = 0;  // images; 0: it is not at rest
  union {
    AwakeBlock* awake = nullptr;  // not at rest; null only where it is missing
    RestingImage resting_one;     // resting_count is 1
    RestingImage* resting_many;   // resting_count is more; owned
  };

  bool is_resting() const { return resting_count > 0; }
  bool is_awake() const { return !is_resting() && awake != nullptr; }
  const RestingImage* resting() const { return resting_count == 1 ? &resting_one : resting_many; }

  bool has_place() const { return is_linked || put_count() > 0; }
  uint64_t end_position() const { return first_position + tokens; }
  uint32_t put_count() const { return is_awake() ? awake->put_count : 0; }
  uint32_t child_put_count() const { return is_awake() ? awake->child_put_count : 0; }
  uint32_t unsettled() const { return is_awake() ? awake->unsettled : 0; }
  // Followers with copies anywhere.
  uint32_t child_count() const {
    return follower_count - (is_awake() ? awake->followers_on_their_way : 0);
  }
  // As a tier that is not the lasting one has it.
  BlockInTier in(size_t tier) const { return is_awake() ? awake->in[tier] : BlockInTier(); }
};
static_assert(sizeof(RestingImage) == 16 && sizeof(Block) == 112,
              "of a block at rest: docs/internals/adr says what that bounds");

}  // namespace cairn
