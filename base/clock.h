// SPDX-License-Identifier: Apache-2.0
#pragma once
// An interface for reading the time. Tests replace it, so they need not sleep to test leases,
// deadlines and recency.
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace cairn {

// Returns the wall-clock time of the process's first call, plus the time since then by a steady
// clock. It never goes back, and setting the system's clock does not change it. All deadlines in
// Cairn are on this clock.
absl::Time MonotonicNow();

// Thread-safety: Every implementation is Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// Thread-safety: Immutable.
class RealClock final : public Clock {
 public:
  absl::Time Now() const override { return MonotonicNow(); }
  // The shared instance, for code without a test clock. It lives as long as the process.
  static const RealClock& Get();
};

}  // namespace cairn
