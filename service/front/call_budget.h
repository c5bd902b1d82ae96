// SPDX-License-Identifier: Apache-2.0
#pragma once
// A memory budget for the calls of the control plane. A call holds memory while its request arrives
// and until its reply is sent. If the calls exceed the budget, the oldest ones are cancelled,
// because a normal call takes only milliseconds. A session's stream and a waiting Match hold no
// memory.
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
    size_t calls_max = 0;     // the limit for calls that hold memory
    absl::Duration grace;     // calls younger than this are not cancelled
    absl::Duration time_max;  // older calls are cancelled even if there is room
  };
  // A call that holds memory. The budget's lock guards its position in the list.
  class Holder {
   public:
    // Cancels the call. Called under the budget's lock, so that the call cannot end meanwhile.
    // REQUIRES of the implementation: it only queues work.
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

  // Sets the number of bytes that `holder` holds. If too many calls hold memory, returns false and
  // sets it to 0.
  bool Hold(Holder& holder, uint64_t bytes);
  // Releases all bytes of `holder`. Idempotent. REQUIRES: called before `holder` is destroyed.
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
