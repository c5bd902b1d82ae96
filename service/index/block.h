// SPDX-License-Identifier: Apache-2.0
#pragma once
// The entries of the index. All fields are guarded by the index's lock, but for those of a pinned
// copy, and of its image, that say so. docs/adr/0012-images-and-copies.md has the table of what
// happens to them.

#include <array>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "service/index/pin.h"
#include "service/index/side_objects.h"
#include "service/tier/block_name.h"
#include "service/tier/image_facts.h"
#include "service/tier/tier_extent.h"

namespace cairn {

struct Block;
struct Image;

// The bytes of an image in one tier.
struct Copy {
  uint32_t slot = 0;
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
  ImageFacts facts;                           // immutable while it or a copy is pinned
  Block* block = nullptr;                     // null once unlinked
  std::array<Copy*, kTierCount> copies{};     // by IndexOf(tier); null: none is resident
  std::array<bool, kTierCount> is_writing{};  // a CopyWriter is at work
  std::array<uint64_t, kTierCount> leased{};  // bytes, as counted since it is leased
  uint32_t pins = 0;                          // leases included
  uint32_t lease_pins = 0;
  uint32_t users = 0;  // copies, leaving ones included, writers and pins: what keeps the record
  bool is_encode_pending = false;
  bool is_let_go = false;    // the lasting tier dropped its copy, which nobody had used
  bool is_uncopied = false;  // in the queue of those that the lasting tier lacks
  bool is_clean = false;     // in that of those which the host tier could do without
  uint32_t passed_over = 0;  // the last round of that queue that found it to wait
  Image* uncopied_before = nullptr;
  Image* uncopied_after = nullptr;

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
  Image* image = nullptr;
};

// A block as one tier has it.
struct BlockInTier {
  static constexpr uint32_t kNotQueued = UINT32_MAX;
  uint32_t copy_count = 0;
  uint32_t child_count = 0;           // children with copies there
  uint32_t held_count = 0;            // of the copies
  uint32_t queue_index = kNotQueued;  // in one of the tier's orders
};

// A name that the index knows. It is one of these:
//
// - There: it has images. Only then is it linked, counted and found.
// - On its way: puts of it are in flight. Its place in its chain is known.
// - Missing: others name it as their parent. Its own parent is not known.
struct Block {
  uint32_t slot = 0;
  bool is_linked = false;
  bool has_let_go = false;  // images for want of the write budget
  BlockName name;
  uint64_t first_position = 0;  // of a missing block: where its children begin
  uint16_t tokens = 0;          // of a missing block: 0
  // The chain. Children are those that are there or on their way, in a circle from first_child on.
  Block* parent = nullptr;  // null: it has none, or is missing
  Block* first_child = nullptr;
  Block* next_sibling = nullptr;
  Block* previous_sibling = nullptr;
  uint32_t follower_count = 0;   // in that circle
  uint32_t child_count = 0;      // of those, with copies anywhere
  uint32_t child_put_count = 0;  // of those, with puts in flight
  uint32_t put_count = 0;        // puts of it in flight
  // The chain above it is broken: it is missing, or a block before it is. True as far as
  // BlockTable::SettleCuts() got: the first `unsettled` children may disagree.
  bool is_cut = false;
  uint32_t unsettled = 0;
  uint32_t unsettled_index = 0;              // in BlockTable::unsettled_, if any child may disagree
  uint32_t search = 0;                       // the last search for a window that it was exempt from
  std::array<BlockInTier, kTierCount> in{};  // by IndexOf(tier)
  uint64_t last_use = 0;                     // a count of uses, index-wide
  absl::Time used_at = absl::InfinitePast();
  uint32_t expires_unix_s = 0;              // the earliest of its images'; 0: never
  absl::InlinedVector<ImageRef, 2> images;  // in the order published

  bool has_place() const { return is_linked || put_count > 0; }
  uint64_t end_position() const { return first_position + tokens; }
};

using ImageList = absl::InlinedVector<Image*, 4>;

}  // namespace cairn
