// SPDX-License-Identifier: Apache-2.0
#pragma once
// What of the host tier may be lent to clients that read it where it lies: of all sessions, and of
// one.
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
  // `host_bytes`: of the host tier. 0: nothing is lent.
  explicit LoanBudget(uint64_t host_bytes);

  bool is_lending() const { return bytes_max_ > 0; }
  // False: the session, or all of them, would hold too much.
  [[nodiscard]] bool Take(uint64_t session_id, uint64_t bytes);
  // REQUIRES: Take() was true, with the same arguments.
  void GiveBack(uint64_t session_id, uint64_t bytes);
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
  absl::flat_hash_map<uint64_t, Held> sessions_ ABSL_GUARDED_BY(mutex_);  // that hold any
};

}  // namespace cairn
