// SPDX-License-Identifier: Apache-2.0
#pragma once
// A memory budget for the calls of the control plane: requests while they arrive, replies until
// they are sent. Above the budget the oldest calls are cancelled, because an honest call takes
// milliseconds. A session's stream and a waiting Match hold no memory.
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
    uint64_t bytes_max = 0;   // for all calls; calls younger than `grace` may exceed it
    size_t calls_max = 0;     // with memory
    absl::Duration grace;     // minimum time before a call is cancelled for others
    absl::Duration time_max;  // an older call is cancelled even without need
  };
  // A call with memory. Thread-safety: its list position is guarded by the budget's lock.
  class Holder {
   public:
    // Cancels the call. Runs under the budget's lock, so that the call cannot end meanwhile: it may
    // only queue work.
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

  // Sets the amount that `holder` holds. Returns false, with nothing held, if too many calls hold
  // memory.
  bool Hold(Holder& holder, uint64_t bytes);
  // Releases everything. Idempotent. REQUIRES: called before the holder is destroyed.
  void Release(Holder& holder);

  uint64_t bytes() const;
  void Report(MetricSink& sink) const;

 private:
  void Remove(Holder& holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeRoom(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::list<Holder::Held> held_ ABSL_GUARDED_BY(mutex_);  // oldest first
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Counter pushed_out_, refused_;
};

}  // namespace cairn
