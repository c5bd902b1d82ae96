// SPDX-License-Identifier: Apache-2.0
#pragma once
// A clock that tests move forward. It starts at 2026-01-01 00:00 UTC.
//
// Thread-safety: Thread-safe.
#include "absl/time/civil_time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace cairn {

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override {
    const MutexLock lock(mutex_);
    return now_;
  }
  void Advance(absl::Duration step) {
    const MutexLock lock(mutex_);
    now_ += step;
  }
  void Set(absl::Time now) {
    const MutexLock lock(mutex_);
    now_ = now;
  }

 private:
  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::FromCivil(absl::CivilDay(2026, 1, 1),
                                                            absl::UTCTimeZone());
};

}  // namespace cairn
