// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads blocks into memory before gets ask for them: blocks that a client named, and blocks that
// follow a block of a leased prefix that had to be read. They wait as names. Only a few are read at
// a time, so that a get never waits behind many of them; when a read ends, the next one begins.
//
// Blocks without room in memory are dropped from the queue: a get reads or misses them. Each tenant
// has a share of the queue.
//
// Thread-safety: Thread-safe.
// Locks:         none is held while it calls the index, the spaces or Promotions.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

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
    uint32_t on_their_way = 0;  // being read, or queued to be
    uint32_t absent = 0;        // a wanted slice of them is not stored
    uint32_t refused = 0;       // too many are queued
  };

  Prefetches(Spaces& spaces, BlockIndex& index, Promotions& promotions)
      : spaces_(spaces), index_(index), promotions_(promotions) {}

  // Queues reads. Does not wait for a tier.
  Answer QueueReads(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                    absl::Span<const WantedGroup> wanted);
  // A get reads that slice of the block, of so many bytes: reads the blocks that follow it under a
  // lease.
  void ReadAhead(const BlockName& block, uint16_t group, const codecs::Slice& slice,
                 uint64_t bytes);
  // Starts the next reads if there is room.
  void StartReads();

  void Report(MetricSink& sink) const;

 private:
  struct Item {
    BlockName block;
    uint16_t group = 0;
    codecs::Slice slice;
    std::string tenant;  // of the space
    friend bool operator==(const Item&, const Item&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const Item& item) {  // of the most distinctive fields
      return H::combine(std::move(state), item.block, item.group);
    }
  };
  enum class Outcome : uint8_t { kBegun, kLater, kDropped };

  Outcome StartRead(const Item& item);
  // Does nothing if it is queued already.
  void AddItem(Item item, bool is_first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Spaces& spaces_;
  BlockIndex& index_;
  Promotions& promotions_;
  mutable Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<Item> waiting_ ABSL_GUARDED_BY(mutex_);  // the queued items, each once
  TenantShares shares_ ABSL_GUARDED_BY(mutex_){"prefetches", limits::kPrefetchesMax};
  bool is_starting_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_room_come_ ABSL_GUARDED_BY(mutex_) = false;  // room came while it starts reads
  Counter begun_, dropped_, refused_;
};

}  // namespace cairn
