// SPDX-License-Identifier: Apache-2.0
#pragma once
// The entries of the index. The index's lock guards all fields, except those of a pinned copy and
// of its image that are marked. The life of a copy: docs/internals/adr/0012-images-and-copies.md.
//
// Most blocks are only in the persistent tier and unused: such a block is at rest. It then consists
// of a Block and a RestingImage for each image, 112 bytes for one image. A block is awake while it
// has an AwakeBlock, with an Image for each image and a Copy for each copy. RestStore wakes a block
// for code that needs these. At the end of each hold of the lock, blocks that nothing needs any
// more go back to rest.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "service/index/pin.h"
#include "service/index/side_objects.h"
#include "service/index/slab.h"
#include "service/limits.h"
#include "service/tier/block_name.h"
#include "service/tier/image_facts.h"
#include "service/tier/tier_extent.h"

namespace cairn {

struct Block;
struct Image;

// What hints make of a block: of two blocks in a tier, that of the lower rank is evicted first.
// Ranks above kPlainRank are those of retained blocks, by priority.
inline constexpr uint8_t kDemotedRank = 0, kPlainRank = 1;
inline constexpr uint8_t kRankCount = kPlainRank + 1 + limits::kRetainPriorityMax;

// Whether write-back leaves an image out, and why, until its block is used. Set only by
// WriteBackQueue.
enum class Suppressed : uint8_t {
  kNot,
  kDropped,   // the persistent tier dropped its unused copy: a child brings it back
  kWithheld,  // the write budget was low: an unused child is written without it
};

// The queue of WriteBackQueue that has an image.
enum class QueueId : uint8_t {
  kNone,
  kPending,   // stored raw: to be encoded, before it is written; it has a copy in the host tier
  kUncopied,  // the persistent tier lacks it
  kClean,     // the host tier could drop it
};

// A copy: the bytes of an image in one tier.
struct Copy {
  uint32_t slot = 0;
  uint32_t next_free = 0;     // the slab's
  Image* image = nullptr;     // immutable while pinned
  CopyFacts facts;            // immutable while pinned
  TierExtent extent;          // immutable while pinned
  SideObjectRef side_object;  // immutable while pinned; null: none
  uint32_t pins = 0;          // CopyPins
  bool is_held = false;       // must not be evicted; counted as such
  uint64_t linked_at = 0;     // a count of uses, as in Block::last_use

  // Belongs to its image; else it is leaving or lost, and freed at the last unpin.
  inline bool is_linked() const;
};

struct Image {
  uint32_t slot = 0;
  uint32_t next_free = 0;                     // the slab's
  ImageFacts facts;                           // immutable while it or a copy is pinned
  Block* block = nullptr;                     // null once unlinked
  std::array<Copy*, kTierCount> copies{};     // by IndexOf(tier); null: no copy there
  std::array<bool, kTierCount> is_writing{};  // a CopyWriter exists
  std::array<uint64_t, kTierCount> leased{};  // bytes that the lease counted
  uint32_t pins = 0;                          // includes leases
  uint32_t lease_pins = 0;
  uint32_t users = 0;  // copies (leaving ones too), writers and pins that keep the record
  Suppressed suppressed = Suppressed::kNot;
  QueueId queue = QueueId::kNone;
  uint32_t passed_over = 0;  // the last round of write-back that skipped it
  Image* queue_previous = nullptr;
  Image* queue_next = nullptr;

  // The copy that a get reads. REQUIRES: linked.
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

inline bool Copy::is_linked() const { return image->copies[IndexOf(facts.tier)] == this; }

// The fields for comparing slices, stored in the block so that images need not be accessed.
struct ImageRef {
  uint16_t group = 0;
  codecs::Slice slice;
  Image* image = nullptr;  // null: of a block at rest
};
using ImageRefs = absl::InlinedVector<ImageRef, 2>;
using ImageList = absl::InlinedVector<Image*, 4>;

// A block in one tier.
struct BlockInTier {
  static constexpr uint32_t kNotQueued = UINT32_MAX;
  uint32_t copy_count = 0;
  uint32_t child_count = 0;           // children with copies there; in a leaf-first tier
  uint32_t held_count = 0;            // held copies
  uint32_t queue_index = kNotQueued;  // in one of the tier's orders
};

// The state of a block that is in use: copies in other tiers than the persistent one, pins, running
// puts, or children with any of these.
struct AwakeBlock {
  uint32_t slot = 0;
  uint32_t next_free = 0;               // the slab's
  uint32_t put_count = 0;               // running puts of it
  uint32_t child_put_count = 0;         // followers with running puts
  uint32_t followers_on_their_way = 0;  // followers that are only being put
  // The first so many children may disagree with is_orphaned.
  uint32_t stale_children = 0;
  uint32_t stale_index = 0;                  // in Chains::stale_parents_, if any child may disagree
  uint32_t search = 0;                       // the last window search that exempts it
  bool is_noted = false;                     // RestStore::Rest() will look at it
  std::array<BlockInTier, kTierCount> in{};  // by IndexOf(tier)
  ImageRefs images;                          // in the order of publication
};

// An image of a block at rest.
struct RestingImage {
  uint32_t kind;  // in ImageKinds: properties that many images share
  uint32_t directory_crc;
  // The place in the persistent tier: its offset is device << 48 | page << 12.
  uint32_t page;
  uint32_t image_bytes : 27;
  uint32_t device : 5;
};

// A name that the index knows. It is in one of these states:
//
// - Present: it has images. Only then is it linked, counted and found.
// - Expected: puts of it are running. Its place in its chain is known.
// - Missing: others name it as their parent. Its own parent is unknown.
struct Block {
  BlockName name;
  uint32_t slot = 0;
  uint32_t next_in_bucket = kNoSlot;  // of NameTable; the slab's while it is not taken
  // The chain, as slots. Children are present or expected blocks, in a circle that starts at
  // first_child.
  uint32_t parent = kNoSlot;  // none: it has none, or is missing
  uint32_t first_child = kNoSlot;
  uint32_t next_sibling = kNoSlot;
  uint32_t previous_sibling = kNoSlot;
  uint32_t follower_count = 0;       // in that circle
  uint32_t used_at_s = 0;            // seconds since 1970
  uint32_t expires_unix_s = 0;       // the earliest of its images; 0: never
  uint64_t first_position : 48 = 0;  // of a missing block: where its children begin
  uint64_t tokens : 16 = 0;          // of a missing block: 0
  uint64_t last_use : 48 = 0;        // a count of uses, index-wide
  uint64_t is_linked : 1 = 0;        // present
  // The chain above it is broken: this block, or one before it, is missing. Up to date as far as
  // Chains::PropagateOrphans() got: AwakeBlock::stale_children children may disagree.
  uint64_t is_orphaned : 1 = 0;
  uint64_t is_used : 1 = 0;         // at rest: used since its copies were written
  uint64_t has_suppressed : 1 = 0;  // an image is suppressed, or was; false: none is
  uint64_t resting_count : 7 = 0;   // images; 0: it is not at rest
  uint64_t rank : 3 = kPlainRank;   // kPlainRank unless it is linked
  uint64_t may_demote : 1 = 0;      // a demotion is pending, and it was not used since the hint
  union {
    AwakeBlock* awake = nullptr;  // null at rest and if missing
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
  uint32_t stale_children() const { return is_awake() ? awake->stale_children : 0; }
  // Followers with copies in any tier.
  uint32_t child_count() const {
    return follower_count - (is_awake() ? awake->followers_on_their_way : 0);
  }
  // The block in a tier other than the persistent one.
  BlockInTier in(size_t tier) const { return is_awake() ? awake->in[tier] : BlockInTier(); }
};
static_assert(kRankCount <= 1 << 3);
static_assert(sizeof(RestingImage) == 16 && sizeof(Block) == 112,
              "of a block at rest: docs/internals/adr says what that bounds");

// --- The descriptions that a put gives to the index

// A block as a put describes it, before or with one of its images.
struct BlockClaim {
  BlockName name;
  proto::BlockKey parent{};  // all zero: none
  uint64_t first_position = 0;
  uint16_t tokens = 0;  // of the block: the space's tokens per block
  uint16_t group = 0;
  codecs::Slice slice;
};

// A copy that is ready to be published: verified, encoded and in its tier.
struct NewCopy {
  codecs::Recipe recipe;
  TierExtent extent;           // size_bytes() is the image's; in the host tier, Use::kPlaced
  SideObjectRef side_object;   // null: none
  uint32_t directory_crc = 0;  // if it cannot be read from extent.bytes()
  // The space's tenant, for a copy of an existing image, which may be leased. Borrowed for the
  // call.
  std::string_view tenant = {};
};

// An image and its first copy.
struct NewImage {
  BlockClaim claim;
  uint64_t source_bytes = 0;
  NewCopy copy;
  bool is_encode_pending = false;  // stored raw: upkeep encodes it later
  uint32_t expires_unix_s = 0;     // when the block expires; 0: never
  EngineNamesRef names = {};       // null: none
};

// --- Holds of the index's lock

// Counts the work in one hold, which may make kVisitsPerHoldMax visits. A visit is one key, image
// or queued block.
class Visits {
 public:
  // Returns false if the work belongs to the next hold. The first request of a hold is always
  // granted, so that each hold makes progress.
  [[nodiscard]] bool Take(size_t count = 1) {
    if (count_ > 0 && count_ + count > limits::kVisitsPerHoldMax) {
      is_spent_ = true;
      return false;
    }
    count_ += count;
    return true;
  }
  size_t count() const { return count_; }
  bool is_spent() const { return is_spent_; }  // a request was refused

 private:
  size_t count_ = 0;
  bool is_spent_ = false;
};

}  // namespace cairn
