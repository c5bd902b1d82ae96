// SPDX-License-Identifier: Apache-2.0
#pragma once
// Limits how much of the host tier and of staging is lent to all clients together, and to one
// session.
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
  // The bytes that a loan keeps from other uses.
  struct Bytes {
    uint64_t host = 0;     // in the host tier
    uint64_t staging = 0;  // in staging

    bool is_empty() const { return host == 0 && staging == 0; }
  };

  // `host_bytes` is the size of the host tier. 0 disables lending. `staging_bytes` is the size of
  // staging, which may be 0.
  explicit LoanBudget(uint64_t host_bytes, uint64_t staging_bytes = 0);

  bool is_lending() const { return max_.host > 0; }
  // Returns false if the session, or all sessions together, would exceed a limit.
  [[nodiscard]] bool TakeBytes(uint64_t session_id, const Bytes& bytes);
  // REQUIRES: TakeBytes() returned true for the same arguments.
  void GiveBytesBack(uint64_t session_id, const Bytes& bytes);
  void Report(MetricSink& sink) const;

 private:
  struct Held {
    Bytes bytes;
    size_t loans = 0;
  };
  const Bytes max_, session_max_;
  Counter refused_;
  mutable Mutex mutex_;
  Bytes lent_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Held> sessions_ ABSL_GUARDED_BY(mutex_);  // sessions with loans
};

}  // namespace cairn
