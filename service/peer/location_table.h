// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which members have which blocks, as far as this daemon was told as a home (homes.h).
//
// An entry may be wrong: its holder may have evicted the block, or may be gone. The holder itself
// decides whether it has a block. So the table has a fixed size and forgets: it consists of buckets
// with kWays entries of 32 bytes, the entry that was announced last first. In a full bucket, the
// entry that was announced first goes.
//
// Thread-safety: Thread-safe. Each of 64 locks guards a part of the buckets.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/location.h"

namespace cairn {

class LocationTable {
 public:
  static constexpr size_t kWays = 16;
  static constexpr size_t kHoldersPerEntry = 4;
  static constexpr uint64_t kBytesMin = 64 * kWays * 32;

  struct Holder {
    uint16_t member = 0;       // its number; 0: none
    uint16_t incarnation = 0;  // the low 16 bits
    friend bool operator==(const Holder&, const Holder&) = default;
  };
  using Holders = absl::InlinedVector<Holder, kHoldersPerEntry>;

  // REQUIRES: bytes >= kBytesMin. Pages that were never used take no memory.
  explicit LocationTable(uint64_t bytes);

  // Adds a holder of the block, or replaces what was known of that member. If the block has
  // kHoldersPerEntry others, the one that was announced first goes. REQUIRES: holder.member != 0.
  void Add(const proto::LocationName& name, Holder holder);
  void Remove(const proto::LocationName& name, uint16_t member);
  // Removes the member from all entries. Cost: reads the whole table.
  void Forget(uint16_t member);
  // Empty: none is known. The holder that was announced last is first.
  Holders Find(const proto::LocationName& name) const;

  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  void Report(MetricSink& sink) const;

 private:
  static constexpr size_t kParts = 64;
  struct Entry {
    proto::LocationName name;
    std::array<Holder, kHoldersPerEntry> holders;  // those without a member are last

    bool is_empty() const { return holders[0].member == 0; }
    bool Drop(uint16_t member);  // returns false if it has no such holder
  };
  static_assert(sizeof(Entry) == 32);
  struct Bucket {
    std::array<Entry, kWays> entries;  // empty ones are last
    // Returns kWays if there is none.
    size_t Find(const proto::LocationName& name) const;
    void Erase(size_t index);
  };
  struct Freed {
    void operator()(Bucket* buckets) const { std::free(buckets); }
  };

  size_t IndexOf(const proto::LocationName& name) const;
  Mutex& LockOf(size_t bucket) const { return locks_[bucket / buckets_per_part_]; }

  const size_t buckets_per_part_;
  const std::unique_ptr<Bucket[], Freed> buckets_;  // guarded by the lock of each
  mutable std::array<Mutex, kParts> locks_;
  std::atomic<uint64_t> count_{0};  // entries
  Counter evicted_;
};

}  // namespace cairn
