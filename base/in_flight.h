// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts the operations of an owner that are in flight, so that its Stop() can wait for them.
//
//   void Copies::Begin() {
//     in_flight_.Enter();
//     tier_.Write(…, [this](absl::Status status) { Completed(status); });
//   }
//   void Copies::Completed(absl::Status status) {
//     …                     // pins released, counters added, waiters told
//     in_flight_.Leave();   // last
//   }
//   void Copies::Stop() {
//     …                     // no operation begins any more
//     in_flight_.Await();
//   }
//
// Leave() must be the last thing that an operation does. It must not use the owner afterwards, nor
// anything that the caller of Stop() may destroy: Await() may return before Leave() does. So
// release everything that the operation owns, and every lock of the owner, before you call Leave().
//
// Await() has no deadline. The owner must ensure that each operation ends. Await() sleeps for at
// most a second at a time.
// Declare the InFlight as the owner's last member. Then it is destroyed first. Its destructor
// checks that nothing is in flight, while the owner's other members still exist. Thread-safety:
// Thread-safe. Locks: its own, under which it calls no other code.

#include <cstddef>

#include "absl/time/time.h"
#include "base/check.h"
#include "base/mutex.h"

namespace cairn {

class InFlight {
 public:
  InFlight() = default;
  // REQUIRES: nothing is in flight (CAIRN_CHECKed).
  ~InFlight() { CAIRN_CHECK(count() == 0, "an operation in flight outlives its owner"); }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Counts an operation. Call it before anything can complete the operation.
  void Enter() {
    const MutexLock lock(mutex_);
    ++count_;
  }
  // Stops counting an operation. It must be the operation's last action: see above.
  void Leave() {
    const MutexLock lock(mutex_);
    CAIRN_CHECK(count_ > 0);
    if (--count_ == 0) {
      idle_.NotifyAll();  // under the lock: the thread that waits may destroy this
    }
  }

  // Returns once nothing is in flight.
  void Await() {
    while (!AwaitUntil(MonotonicNow() + absl::Seconds(1))) {
    }
  }
  // Returns true once nothing is in flight, or false at `deadline` (on the clock of
  // MonotonicNow()).
  [[nodiscard]] bool AwaitUntil(absl::Time deadline) {
    const MutexLock lock(mutex_);
    while (count_ > 0 && idle_.WaitUntil(mutex_, deadline)) {
    }
    return count_ == 0;
  }

  size_t count() const {
    const MutexLock lock(mutex_);
    return count_;
  }

 private:
  mutable Mutex mutex_;
  CondVar idle_;
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
