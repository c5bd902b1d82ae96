// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"

namespace cairn {

// Measures the time of a step of a request, from construction to the end of its scope.
// Thread-safety: Thread-compatible.
class StepTimer {
 public:
  explicit StepTimer(Histogram& seconds) : seconds_(seconds), started_(MonotonicNow()) {}
  ~StepTimer() { seconds_.Observe(MonotonicNow() - started_); }
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

 private:
  Histogram& seconds_;
  const absl::Time started_;
};

}  // namespace cairn
