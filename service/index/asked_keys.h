// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys that were asked for, as a sketch. It estimates what a cache without bounds would have
// missed, and so what share of the misses a larger one could turn into hits.
//
// HyperLogLog's registers (Flajolet et al., 2007), read by the martingale of Ting (KDD 2014,
// "Streamed approximate counting of distinct elements"): a key that is new changes a register with
// probability p, which is known, and counts 1 / p when it does. That is unbiased for any part of
// the keys, so those that were found are remembered without being counted.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/mutex.h"
#include "proto/frame.h"

namespace cairn {

// 64 KiB. The standard error is 0.33 % of the distinct keys.
//
// Thread-safety: Thread-safe.
// Cost:          a hash and one register a key.
class AskedKeys {
 public:
  AskedKeys() = default;
  AskedKeys(const AskedKeys&) = delete;
  AskedKeys& operator=(const AskedKeys&) = delete;

  // Somebody asked for these keys, and the first `found` of them were there.
  void Add(uint64_t space_id, absl::Span<const proto::BlockKey> keys, size_t found);

  // Keys that were not found when they were first asked for. Never falls.
  uint64_t first_misses() const;

 private:
  static constexpr int kRegisterBits = 16;
  static constexpr uint32_t kRegisters = 1U << kRegisterBits;

  mutable Mutex mutex_;
  // The longest run of leading zeros, and one, among the hashes of each register; 0: none yet.
  std::array<uint8_t, kRegisters> longest_ ABSL_GUARDED_BY(mutex_) = {};
  // The sum of 2^-longest_: kRegisters * p.
  double weight_ ABSL_GUARDED_BY(mutex_) = kRegisters;
  double first_misses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
