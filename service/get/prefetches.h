// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads blocks into memory before gets ask for them. A block is prefetched if a client asked for
// that. It is also prefetched if a client has leased it and a block before it in the prefix had to
// be read. Blocks wait in a queue, by name. Only a few reads run at a time, so that a get never
// waits behind many reads. When a read ends, the next one begins.
//
// If memory has no room for a block, the block leaves the queue unread. Each tenant has a share of
// the queue.
//
// Thread-safety: Thread-safe. Locks: no lock is held while it calls the index, the spaces or
// Promotions.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/get/promotions.h"
#include "service/index/block_index.h"
#include "service/index/match.h"
#include "service/index/tenant_shares.h"
#include "service/limits.h"
#include "service/spaces.h"

namespace cairn {

class Prefetches {
 public:
  // The number of requested blocks in each state.
  struct Answer {
    uint32_t in_memory = 0;
    uint32_t on_their_way = 0;                      // running or queued reads
    uint32_t absent = 0;                            // not stored, or without a wanted slice
    uint32_t refused = 0;                           // not queued, because the queue is full
    std::vector<proto::BlockKey> absent_keys = {};  // in the order of the request
  };

  Prefetches(Spaces& spaces, BlockIndex& index, Promotions& promotions)
      : spaces_(spaces), index_(index), promotions_(promotions) {}

  // Queues reads. Does not wait for a tier.
  Answer QueueReads(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                    absl::Span<const WantedGroup> wanted);
  // Called when a get reads that slice of the block from a tier. `bytes` is the size of the read.
  // Queues reads of the leased blocks that follow the block in its chain.
  void ReadAhead(const BlockName& block, uint16_t group, const codecs::Slice& slice,
                 uint64_t bytes);
  // Starts as many of the next reads as there is room for.
  void StartReads();

  void Report(MetricSink& sink) const;

 private:
  struct Item {
    BlockName block;
    uint16_t group = 0;
    codecs::Slice slice;
    std::string tenant;  // the tenant of the space
    friend bool operator==(const Item&, const Item&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const Item& item) {  // hashes the fields that differ most
      return H::combine(std::move(state), item.block, item.group);
    }
  };
  enum class Outcome : uint8_t { kBegun, kLater, kDropped };

  Outcome StartRead(const Item& item);
  // Does nothing if the item is queued already.
  void AddItem(Item item, bool is_first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Spaces& spaces_;
  BlockIndex& index_;
  Promotions& promotions_;
  mutable Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<Item> waiting_ ABSL_GUARDED_BY(mutex_);  // the same items, to find duplicates
  TenantShares shares_ ABSL_GUARDED_BY(mutex_){"prefetches", limits::kPrefetchesMax};
  bool is_starting_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_room_come_ ABSL_GUARDED_BY(mutex_) = false;  // set while StartReads() runs
  Counter begun_, dropped_, refused_;
};

}  // namespace cairn
