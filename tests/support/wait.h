// SPDX-License-Identifier: Apache-2.0
#pragma once
// Waits for a condition that another thread or process will make true.

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace cairn {

// Calls `condition()` until it returns true, at most for `limit`. Returns false if it did not.
template <typename Condition>
[[nodiscard]] bool WaitFor(Condition condition, absl::Duration limit = absl::Seconds(30),
                           absl::Duration pause = absl::Milliseconds(1)) {
  const absl::Time deadline = MonotonicNow() + limit;
  while (!condition()) {
    if (MonotonicNow() >= deadline) return false;
    absl::SleepFor(pause);
  }
  return true;
}

}  // namespace cairn
