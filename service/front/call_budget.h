// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the calls of the control plane hold of the daemon's memory: a request while it arrives, a
// reply until it has left. Past the budget the calls that have held longest are cancelled, never
// younger ones: an honest call is over in milliseconds. A session's stream and a Match that waits
// hold nothing.
//
// Thread-safety: Thread-safe.

#include <cstdint>
#include <list>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"

namespace cairn {

class CallBudget {
 public:
  struct Limits {
    uint64_t bytes_max = 0;   // of all calls; calls younger than `grace` may go past it
    size_t calls_max = 0;     // that hold something
    absl::Duration grace;     // what a call may take before others push it out
    absl::Duration time_max;  // a call that has held longer goes, with or without need
  };
  // What holds. Thread-safety: its list position is guarded by the budget's lock.
  class Holder {
   public:
    // Cancels the call. Runs under the budget's lock, so that the call cannot end meanwhile: it may
    // only queue.
    virtual void GiveWay() = 0;

   protected:
    Holder() = default;
    ~Holder() = default;

   private:
    friend class CallBudget;
    struct Held {
      Holder* holder = nullptr;
      uint64_t bytes = 0;
      absl::Time since;
    };
    bool is_held_ = false;
    std::list<Held>::iterator position_;
  };

  CallBudget(const Limits& limits, const Clock& clock) : limits_(limits), clock_(clock) {}

  // From now on `holder` holds that much, instead of what it held. False, holding nothing: too many
  // calls hold something.
  bool Hold(Holder& holder, uint64_t bytes);
  // It holds nothing any more. Idempotent. REQUIRES: called before the holder is destroyed.
  void Release(Holder& holder);

  uint64_t bytes() const;
  void Report(MetricSink& sink) const;

 private:
  void Remove(Holder& holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeRoom(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::list<Holder::Held> held_ ABSL_GUARDED_BY(mutex_);  // longest first
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Counter pushed_out_, refused_;
};

}  // namespace cairn
