// SPDX-License-Identifier: Apache-2.0
#pragma once
// A sketch of the requested keys. It estimates the misses of an unbounded cache, and so the share
// of misses that a larger cache could turn into hits.
//
// It has the registers of HyperLogLog (Flajolet et al., 2007), read by the martingale estimator of
// Ting (KDD 2014, "Streamed approximate counting of distinct elements"): a new key changes a
// register with a known probability p, and then counts 1 / p. This is unbiased for any subset of
// the keys, so hits are recorded without being counted.

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

  // Records a request for these keys, of which the first `found` were stored.
  void Add(uint64_t space_id, absl::Span<const proto::BlockKey> keys, size_t found);

  // Keys that were not stored when they were first requested. Never decreases.
  uint64_t first_misses() const;

 private:
  static constexpr int kRegisterBits = 16;
  static constexpr uint32_t kRegisters = 1U << kRegisterBits;

  mutable Mutex mutex_;
  // For each register: the longest run of leading zeros among its hashes, plus one; 0: no hash yet.
  std::array<uint8_t, kRegisters> longest_ ABSL_GUARDED_BY(mutex_) = {};
  // The sum of 2^-longest_: kRegisters * p.
  double weight_ ABSL_GUARDED_BY(mutex_) = kRegisters;
  double first_misses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
