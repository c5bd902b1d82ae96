// SPDX-License-Identifier: Apache-2.0
#pragma once
// Time behind a seam, so that leases, deadlines and recency are tested without sleeping.
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace cairn {

// Wall-clock time as it was when the process first asked, plus what a steady clock has counted
// since: it never goes back and does not jump when someone sets the clock. Deadlines of the whole
// program are points of this time.
absl::Time MonotonicNow();

// Thread-safety: Thread-safe, every implementation.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// Thread-safety: Immutable.
class RealClock final : public Clock {
 public:
  absl::Time Now() const override { return MonotonicNow(); }
  // The one instance that code without a test clock uses; it lives as long as the process.
  static const RealClock& Get();
};

}  // namespace cairn
