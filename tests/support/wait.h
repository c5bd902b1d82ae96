// SPDX-License-Identifier: Apache-2.0
#pragma once
// Waiting for what another thread or process is about to do.

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace cairn {

// Asks `condition()` until it is true, at most for `limit`; false when it did not come true.
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
