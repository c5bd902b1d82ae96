// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <chrono>

namespace cairn {

absl::Time MonotonicNow() {
  static const absl::Time start = absl::Now();
  static const std::chrono::steady_clock::time_point steady_start =
      std::chrono::steady_clock::now();
  return start + absl::FromChrono(std::chrono::steady_clock::now() - steady_start);
}

const RealClock& RealClock::Get() {
  static const RealClock clock;
  return clock;
}

}  // namespace cairn
