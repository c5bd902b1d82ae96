// SPDX-License-Identifier: Apache-2.0
#pragma once
// Why blocks are not stored: a record of the last removals and refused puts, for Explain. Part of
// BlockIndex.
//
// The record has a fixed capacity, and a new entry replaces the oldest. An entry names its block by
// a hash of 64 bits, which is seeded at random in each process.
//
// Thread-safety: Thread-compatible (the index's lock).
// Cost:          Add() and Find() take constant time on average; no allocation.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "service/limits.h"
#include "service/tier/block_name.h"

namespace cairn {

enum class RemovalReason : uint8_t {
  kEvicted,
  kExpired,
  kDeleted,
  kInvalidated,
  kDamaged,
  kDeviceOut,
  kRefused,  // a put was refused: the block was not stored
};

struct Removal {
  RemovalReason reason = RemovalReason::kEvicted;
  uint32_t at_unix_s = 0;
};

class Removals {
 public:
  // Keeps `capacity` entries, but at least 1. `start_unix_s` is the current time.
  Removals(uint32_t capacity, uint32_t start_unix_s);

  void Add(const BlockName& name, RemovalReason reason, uint32_t at_unix_s);
  // Returns the block's last removal, or nullopt if none is recorded.
  std::optional<Removal> Find(const BlockName& name) const;

  // Returns the time since which the record has every removal.
  uint32_t since_unix_s() const { return since_unix_s_; }
  // Returns true if no entry was replaced. Then a block without an entry was not removed since the
  // start.
  bool is_complete() const { return !is_full_; }
  uint64_t bytes() const { return uint64_t{capacity_} * limits::kRemovalBytes; }

 private:
  static constexpr uint32_t kReasonBits = 4;
  static constexpr uint32_t kNone = UINT32_MAX >> kReasonBits;

  struct Entry {
    uint64_t hash = 0;
    uint32_t at_unix_s = 0;
    uint32_t next : 32 - kReasonBits = kNone;  // the next entry of the bucket
    uint32_t reason : kReasonBits = 0;
  };
  static_assert(sizeof(Entry) + sizeof(uint32_t) == limits::kRemovalBytes);

  void Forget(uint32_t index);

  const uint32_t capacity_;
  std::vector<Entry> entries_;     // a ring
  std::vector<uint32_t> buckets_;  // the newest entry of each bucket
  uint32_t next_ = 0;              // next place in the ring
  bool is_full_ = false;
  uint32_t since_unix_s_;
};

}  // namespace cairn
