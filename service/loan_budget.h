// SPDX-License-Identifier: Apache-2.0
#pragma once
// Limits how much of the host tier is lent to all clients together, and to one session.
//
// Thread-safety: Thread-safe.

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "base/metric.h"
#include "base/mutex.h"

namespace cairn {

class LoanBudget {
 public:
  // `host_bytes` is the size of the host tier. 0 disables lending.
  explicit LoanBudget(uint64_t host_bytes);

  bool is_lending() const { return bytes_max_ > 0; }
  // Returns false if the session, or all sessions together, would exceed a limit.
  [[nodiscard]] bool TakeBytes(uint64_t session_id, uint64_t bytes);
  // REQUIRES: TakeBytes() returned true for the same arguments.
  void GiveBytesBack(uint64_t session_id, uint64_t bytes);
  void Report(MetricSink& sink) const;

 private:
  struct Held {
    uint64_t bytes = 0;
    size_t loans = 0;
  };
  const uint64_t bytes_max_, session_bytes_max_;
  Counter refused_;
  mutable Mutex mutex_;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Held> sessions_ ABSL_GUARDED_BY(mutex_);  // sessions with loans
};

}  // namespace cairn
