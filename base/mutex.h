// SPDX-License-Identifier: Apache-2.0
#pragma once
// The only lock of this code: std::mutex under Abseil's thread annotations. (absl::Mutex of a
// distribution is not instrumented and makes ThreadSanitizer report races that are none.)
//
//   Mutex mutex_;
//   int pins_ ABSL_GUARDED_BY(mutex_) = 0;
//
//   MutexLock lock(mutex_);
//   while (pins_ != 0) {
//     if (!released_.WaitUntil(mutex_, deadline)) return absl::DeadlineExceededError("pins held");
//   }
#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace cairn {

// Thread-safety: Thread-safe. Not recursive.
class ABSL_LOCKABLE Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  [[nodiscard]] bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex for a scope. Thread-safety: Owned by the thread that made it.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits always have a deadline, and may end early without cause: call them in a loop over the
// condition. Thread-safety: Thread-safe.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // Gives up `mutex`, sleeps until notified or until `deadline` (a point of MonotonicNow()), takes
  // `mutex` again. False once the deadline has passed.
  bool WaitUntil(Mutex& mutex, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    // A day, so that InfiniteFuture neither overflows nor waits for ever; the caller's loop comes
    // back.
    const absl::Duration wait = std::min(deadline - MonotonicNow(), absl::Hours(24));
    if (wait <= absl::ZeroDuration()) {
      return false;
    }
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    wake_.wait_for(lock, absl::ToChronoNanoseconds(wait));
    lock.release();
    return MonotonicNow() < deadline;
  }

  void NotifyOne() { wake_.notify_one(); }
  void NotifyAll() { wake_.notify_all(); }

 private:
  std::condition_variable wake_;
};

}  // namespace cairn
