// SPDX-License-Identifier: Apache-2.0
#pragma once
// The entries of the index. The index's lock guards all fields, except those marked immutable while
// an image or a copy is pinned. docs/internals/adr/0012-images-and-copies.md describes the states
// of a copy.
//
// Most blocks are unused and only in the persistent tier. Such a block is at rest: it consists of a
// Block and one RestingImage per image, together 112 bytes if it has one image. All other blocks
// with images are awake: they have an AwakeBlock, an Image for each image and a Copy for each copy.
// Code that needs these records calls RestStore, which wakes the block. At the end of each hold of
// the lock, RestStore puts awake blocks to rest if nothing needs them any more.

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

// Ranks of blocks. In a tier, blocks of a lower rank are evicted first. A block has kFetchedRank if
// it was fetched from another member of the cluster and was not used again. Hints from clients set
// the others; ranks above kPlainRank belong to retained blocks, by priority.
inline constexpr uint8_t kFetchedRank = 0, kDemotedRank = 1, kPlainRank = 2;
inline constexpr uint8_t kRankCount = kPlainRank + 1 + limits::kRetainPriorityMax;

// Whether write-back skips an image until its block is used, and for which reason. Only
// WriteBackQueue sets it.
enum class Suppressed : uint8_t {
  kNot,
  kDropped,   // the persistent tier dropped the unused copy; it is written again for a child
  kWithheld,  // the write budget was low; a child that is unused is written without it
};

// The queue of WriteBackQueue that contains an image.
enum class QueueId : uint8_t {
  kNone,
  kPending,   // stored raw, and written only after it is encoded; in the host tier
  kUncopied,  // the persistent tier has no copy
  kClean,     // the host tier can drop its copy without losing the image
};

// A copy: the bytes of an image in one tier.
struct Copy {
  uint32_t slot = 0;
  uint32_t next_free = 0;     // used by the slab
  Image* image = nullptr;     // immutable while pinned
  CopyFacts facts;            // immutable while pinned
  TierExtent extent;          // immutable while pinned
  SideObjectRef side_object;  // immutable while pinned; null: none
  uint32_t pins = 0;          // number of CopyPins
  bool is_held = false;       // must not be evicted; counted as held
  uint64_t linked_at = 0;     // RestStore::uses() when it was last linked or queued

  // Returns true if the image still refers to this copy. A copy that is not linked is freed at its
  // last unpin.
  inline bool is_linked() const;
};

struct Image {
  uint32_t slot = 0;
  uint32_t next_free = 0;  // used by the slab
  ImageFacts facts;        // immutable while the image or one of its copies is pinned
  Block* block = nullptr;  // null once unlinked
  std::array<Copy*, kTierCount> copies{};     // indexed by IndexOf(tier); null: no copy there
  std::array<bool, kTierCount> is_writing{};  // indexed by IndexOf(tier): a CopyWriter exists
  std::array<uint64_t, kTierCount> leased{};  // indexed by IndexOf(tier): bytes counted as leased
  uint32_t pins = 0;                          // includes the pins of leases
  uint32_t lease_pins = 0;
  uint32_t users = 0;  // number of copies (linked or not), writers and pins that need this record
  Suppressed suppressed = Suppressed::kNot;
  QueueId queue = QueueId::kNone;
  uint32_t passed_over = 0;  // the last round of write-back that skipped this image
  Image* queue_previous = nullptr;
  Image* queue_next = nullptr;

  // Returns the copy that a get reads. REQUIRES: linked.
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

// The fields of an image that are needed to compare slices. They are stored in the block, so that a
// comparison does not access the images.
struct ImageRef {
  uint16_t group = 0;
  codecs::Slice slice;
  Image* image = nullptr;  // null if the block is at rest
};
using ImageRefs = absl::InlinedVector<ImageRef, 2>;
using ImageList = absl::InlinedVector<Image*, 4>;

// A block in one tier.
struct BlockInTier {
  static constexpr uint32_t kNotQueued = UINT32_MAX;
  uint32_t copy_count = 0;
  uint32_t child_count = 0;  // children with copies in the tier; counted in leaf-first tiers
  uint32_t held_count = 0;   // held copies
  uint32_t queue_index = kNotQueued;  // its index in one of the tier's orders
};

// The state of an awake block. A block is awake if it has copies in a tier that is not persistent,
// pins, running puts, or children with any of these.
struct AwakeBlock {
  uint32_t slot = 0;
  uint32_t next_free = 0;               // used by the slab
  uint32_t put_count = 0;               // running puts of this block
  uint32_t child_put_count = 0;         // followers with running puts
  uint32_t followers_on_their_way = 0;  // followers that have running puts but no images yet
  // The number of children, counted from the first, whose is_orphaned may be out of date.
  uint32_t stale_children = 0;
  uint32_t stale_index = 0;  // its index in Chains::stale_parents_, if stale_children > 0
  uint32_t search = 0;       // the last window search that must not evict the block
  bool is_noted = false;     // RestStore::Rest() will check it
  std::array<BlockInTier, kTierCount> in{};  // indexed by IndexOf(tier)
  ImageRefs images;                          // ordered by publication
};

// An image of a block at rest.
struct RestingImage {
  uint32_t kind;  // number in ImageKinds, which has the properties that many images share
  uint32_t directory_crc;
  // The place in the persistent tier. Its offset is device << 48 | page << 12.
  uint32_t page;
  uint32_t image_bytes : 27;
  uint32_t device : 5;
};

// A name that the index knows. Its block is in one of these states:
//
// - Present: the block has images. Only a present block is linked, counted and found.
// - Expected: it has running puts, but no images. Its place in its chain is known.
// - Missing: other blocks name it as their parent. Its own parent is unknown.
struct Block {
  BlockName name;
  uint32_t slot = 0;
  uint32_t next_in_bucket = kNoSlot;  // used by NameTable, and by the slab while the block is free
  // The chain, as slot numbers. The children are present or expected blocks. They form a circular
  // list, which starts at first_child.
  uint32_t parent = kNoSlot;  // kNoSlot: it has no parent, or it is missing
  uint32_t first_child = kNoSlot;
  uint32_t next_sibling = kNoSlot;
  uint32_t previous_sibling = kNoSlot;
  uint32_t follower_count = 0;       // number of blocks in that list
  uint32_t used_at_s = 0;            // seconds since 1970
  uint32_t expires_unix_s = 0;       // the earliest expiry of its images; 0: never
  uint64_t first_position : 48 = 0;  // if the block is missing: the first position of its children
  uint64_t tokens : 16 = 0;          // 0 if the block is missing
  uint64_t last_use : 48 = 0;        // RestStore::uses() at the time of the last use
  uint64_t is_linked : 1 = 0;        // the block is present
  // True if this block, or one before it in its chain, is missing. May be out of date until
  // Chains::PropagateOrphans() has reached the block (AwakeBlock::stale_children).
  uint64_t is_orphaned : 1 = 0;
  uint64_t is_used : 1 = 0;         // if the block is at rest: used since its copies were written
  uint64_t has_suppressed : 1 = 0;  // true if an image is or was suppressed; false: no image is
  uint64_t resting_count : 7 = 0;   // number of images; 0: the block is not at rest
  uint64_t rank : 3 = kPlainRank;   // kPlainRank unless it is linked
  uint64_t may_demote : 1 = 0;  // a demotion is pending, and the block was not used since the hint
  uint64_t is_fetched : 1 = 0;  // from another member, for a get that has not read it yet
  union {
    AwakeBlock* awake = nullptr;  // null if at rest or missing
    RestingImage resting_one;     // if resting_count is 1
    RestingImage* resting_many;   // if resting_count is larger; owned
  };

  bool is_resting() const { return resting_count > 0; }
  bool is_awake() const { return !is_resting() && awake != nullptr; }
  const RestingImage* resting() const { return resting_count == 1 ? &resting_one : resting_many; }

  bool has_place() const { return is_linked || put_count() > 0; }
  uint64_t end_position() const { return first_position + tokens; }
  uint32_t put_count() const { return is_awake() ? awake->put_count : 0; }
  uint32_t child_put_count() const { return is_awake() ? awake->child_put_count : 0; }
  uint32_t stale_children() const { return is_awake() ? awake->stale_children : 0; }
  // The number of followers with copies in any tier.
  uint32_t child_count() const {
    return follower_count - (is_awake() ? awake->followers_on_their_way : 0);
  }
  // Returns the block's state in a tier that is not the persistent one.
  BlockInTier in(size_t tier) const { return is_awake() ? awake->in[tier] : BlockInTier(); }
};
static_assert(kRankCount <= 1 << 3);
static_assert(sizeof(RestingImage) == 16 && sizeof(Block) == 112,
              "of a block at rest: docs/internals/adr says what that bounds");

// --- What a put tells the index

// The block as described by a put. A put describes its block before the image exists, and again
// with the image.
struct BlockClaim {
  BlockName name;
  proto::BlockKey parent{};  // all zero: none
  uint64_t first_position = 0;
  uint16_t tokens = 0;  // number of tokens: the space's tokens per block
  uint16_t group = 0;
  codecs::Slice slice;
  uint64_t run = 0;  // the block's run, if it is known from elsewhere; 0: not (proto/location.h)
};

// A copy that is ready to be published: verified, encoded and in its tier.
struct NewCopy {
  codecs::Recipe recipe;
  TierExtent extent;  // size_bytes() is the size of the image; in the host tier, Use::kPlaced
  SideObjectRef side_object;   // null: none
  uint32_t directory_crc = 0;  // set only if it cannot be read from extent.bytes()
  // The space's tenant. Set for another copy of an existing image, which may be leased. Borrowed
  // for the call.
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
  bool is_fetched = false;         // from another member, for a get that waits
};

// --- Holds of the index's lock

// Counts the work in one hold of the lock. Each key, image or queued block that the code examines
// is a visit. A hold may make kVisitsPerHoldMax visits.
class Visits {
 public:
  // Returns false if the work must wait for the next hold. The first request of a hold always
  // returns true, so that each hold makes progress.
  [[nodiscard]] bool Take(size_t count = 1) {
    if (count_ > 0 && count_ + count > limits::kVisitsPerHoldMax) {
      is_spent_ = true;
      return false;
    }
    count_ += count;
    return true;
  }
  size_t count() const { return count_; }
  bool is_spent() const { return is_spent_; }  // whether Take() has returned false

 private:
  size_t count_ = 0;
  bool is_spent_ = false;
};

}  // namespace cairn
