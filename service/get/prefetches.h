// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks that are to be in memory before a get asks for them: those that a client named, and those
// that follow a block of a leased prefix that had to be read. They wait as names. A few are read
// at a time, so that a get never waits behind many of them, and the next begins when a read ends.
//
// What there is no room for is forgotten: a get reads it, or misses it. Of those that wait each
// tenant has a share.
//
// Thread-safety: Thread-safe.
// Locks:         none held while the index, the spaces or Promotions are called.

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
#include "service/index/images.h"
#include "service/index/tenant_shares.h"
#include "service/index/wanted.h"
#include "service/limits.h"
#include "service/spaces.h"

namespace cairn {

class Prefetches {
 public:
  // What became of the blocks that were asked for, each counted once.
  struct Answer {
    uint32_t in_memory = 0;
    uint32_t on_their_way = 0;  // being read, or to be read
    uint32_t absent = 0;        // something that is wanted of them is nowhere
    uint32_t refused = 0;       // too many wait
  };

  Prefetches(Spaces& spaces, Images& images, Promotions& promotions)
      : spaces_(spaces), images_(images), promotions_(promotions) {}

  // Does not wait for a tier.
  Answer Begin(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
               absl::Span<const WantedGroup> wanted);
  // A get reads that slice of the block, which has so many bytes: those that follow it under a
  // lease come next.
  void ReadAhead(const BlockName& block, uint16_t group, const codecs::Slice& slice,
                 uint64_t bytes);
  // There may be room for the next.
  void Pump();

  void Report(MetricSink& sink) const;

 private:
  struct Item {
    BlockName block;
    uint16_t group = 0;
    codecs::Slice slice;
    std::string tenant;  // of the space
    friend bool operator==(const Item&, const Item&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const Item& item) {  // of what tells most apart
      return H::combine(std::move(state), item.block, item.group);
    }
  };
  enum class Outcome : uint8_t { kBegun, kLater, kDropped };

  Outcome Start(const Item& item);
  // Nothing if it waits already.
  void Add(Item item, bool is_first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Spaces& spaces_;
  Images& images_;
  Promotions& promotions_;
  mutable Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<Item> waiting_ ABSL_GUARDED_BY(mutex_);  // those, each once
  TenantShares shares_ ABSL_GUARDED_BY(mutex_){"prefetches", limits::kPrefetchesMax};
  bool is_pumping_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_room_come_ ABSL_GUARDED_BY(mutex_) = false;  // while it pumps
  Counter begun_, dropped_, refused_;
};

}  // namespace cairn
