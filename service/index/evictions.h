// SPDX-License-Identifier: Apache-2.0
#pragma once
// Evicts blocks by the rules of Evictor. Blocks are evicted either by age, leaves of chains first,
// or by place, to free the cheapest range of an arena. This class also keeps the index within its
// limits of blocks, images and memory.
//
// Thread-safety: Thread-compatible (the index's lock).

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/index/block.h"
#include "service/index/index_parts.h"
#include "service/index/tier_set.h"
#include "service/limits.h"
#include "service/memory/arena.h"
#include "service/tier/block_name.h"
#include "service/tier/evictor.h"

namespace cairn {

// One eviction, which may take several holds of the lock.
struct Eviction {
  TierId tier = TierId::kHost;
  EvictionReason reason = EvictionReason::kCapacity;
  const BlockName* newcomer = nullptr;  // the block that needs the room; null: none
  // The value of the use counter when the search had found that every leaf is held. Leaves with
  // later uses are not examined again.
  uint64_t since = UINT64_MAX;
  bool is_past_leaves = false;  // the last hold examined ancestors of held leaves
};

class Evictions {
 public:
  // Borrows the parts.
  Evictions(IndexParts& parts, uint64_t blocks_max, uint64_t images_max);

  // Does the same as Evictor, but returns when `visits` are spent. The next call of EvictOldest()
  // then continues.
  uint64_t EvictOldest(Eviction& eviction, Visits& visits);
  bool EvictWindow(Arena& arena, uint64_t bytes, const BlockName* newcomer, uint64_t* bytes_passed,
                   Visits& visits);

  // Evicts blocks until the index has room for another image of the block. Errors:
  // ResourceExhausted (nothing more can be evicted).
  absl::Status MakeRoom(Block* block, absl::Time now);
  // Reduces the memory of awake blocks while it is too large: evicts blocks from the GPU tier, then
  // from the host tier. Copies in the persistent tier stay.
  void MakeRoomForAwake(const BlockName& newcomer);

 private:
  // The number of blocks that counts for the limit. It also counts the memory of engines' names, as
  // the number of blocks at rest that would use as much.
  uint64_t block_count() const {
    return parts_.tiers.figures().block_count +
           parts_.records.names_bytes() / limits::kIndexBytesAtRest;
  }
  bool IsOrphaned(const BlockName* newcomer) const {
    return newcomer != nullptr && parts_.chains.IsOrphaned(*newcomer);
  }
  // Returns the next block of the tier to evict. Returns null if there is none, or if `visits` are
  // spent.
  Block* Oldest(Eviction& eviction, Visits& visits);
  Block* OldestLeaf(TierSet::Order& order, TierId tier, Visits& visits);
  Block* PastHeldLeaves(TierSet::Order& order, const Eviction& eviction, Visits& visits);
  // Returns the nearest ancestor that has unheld copies in the tier and may be evicted for the
  // newcomer. Returns null if there is none, or if `visits` are spent. Sets *is_being_put if a put
  // of one of the ancestor's followers is running.
  Block* UnheldAncestor(Block& block, const Eviction& eviction, bool* is_being_put, Visits& visits);
  // Evicts a block's copies in a tier. The block leaves the index with its last image. Returns the
  // bytes that are free now.
  uint64_t Evict(Block* block, TierId tier, EvictionReason reason);
  // Evicts a whole block. Returns false if none can be evicted.
  bool EvictAnywhere(EvictionReason reason, const BlockName& newcomer, Visits& visits);

  IndexParts& parts_;
  const uint64_t blocks_max_, images_max_;
  uint32_t search_ = 0;  // the number of the last window search
};

}  // namespace cairn
