// SPDX-License-Identifier: Apache-2.0
#pragma once
// Cairn's only lock: std::mutex with Abseil's thread annotations. (absl::Mutex from a Linux
// distribution is not instrumented, so ThreadSanitizer reports false races for it.)
//
//   Mutex mutex_;
//   int pins_ ABSL_GUARDED_BY(mutex_) = 0;
//
//   MutexLock lock(mutex_);
//   while (pins_ != 0) {
//     if (!released_.WaitUntil(mutex_, deadline)) return absl::DeadlineExceededError("pins held");
//   }
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/clock.h"

#ifdef __SANITIZE_THREAD__
extern "C" {
void __tsan_acquire(void* address);  // NOLINT(bugprone-reserved-identifier): the sanitizer's
void __tsan_release(void* address);  // NOLINT(bugprone-reserved-identifier): the sanitizer's
}
#endif

namespace cairn {

// Thread-safety: Thread-safe. Not recursive.
class ABSL_LOCKABLE Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (!mutex_.try_lock()) {
      LockAfterOthers();
    }
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  [[nodiscard]] bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

  // Lets every thread that is now waiting take the lock once, then returns. std::mutex is not fair:
  // a thread that takes the lock many times in a row must call this in between, because otherwise
  // the other threads may never get the lock.
  void LetWaitersPass() ABSL_LOCKS_EXCLUDED(this) {
    const uint32_t had_before = had_.load(std::memory_order_seq_cst);
    const uint32_t waiting = waiting_.load(std::memory_order_seq_cst);
    // This loop ends: the caller does not hold the lock, so each of the `waiting` threads gets it
    // and then increments had_.
    for (uint32_t had = had_before; had - had_before < waiting;
         had = had_.load(std::memory_order_seq_cst)) {
      had_.wait(had, std::memory_order_seq_cst);
    }
  }
  // The number of threads that wait in Lock().
  uint32_t waiting() const { return waiting_.load(std::memory_order_relaxed); }

 private:
  friend class CondVar;

  void LockAfterOthers() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    mutex_.lock();
    // First waiting_, then had_: LetWaitersPass() reads them in the reverse order. So if it counts
    // this thread in `waiting`, it does not count this thread in had_before.
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
    had_.fetch_add(1, std::memory_order_seq_cst);
    had_.notify_all();
  }

  std::mutex mutex_;
  std::atomic<uint32_t> waiting_{0};
  std::atomic<uint32_t> had_{0};  // number of times that a waiting thread got the lock
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

// A condition variable. Every wait has a deadline and may end early for no reason. So wait in a
// loop that checks the condition. Thread-safety: Thread-safe.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // Releases `mutex`, sleeps until it is notified or until `deadline` (on the clock of
  // MonotonicNow()), and takes `mutex` again. Returns false once the deadline has passed.
  bool WaitUntil(Mutex& mutex, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    // Waits at most a day, so that InfiniteFuture does not overflow. The caller's loop then waits
    // again.
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

// --- For ThreadSanitizer -------------------------------------------------------------------------
// An object passes from one thread to another through a library that is not instrumented. The
// sanitizer cannot see that library's synchronization. In other builds, these functions do nothing.

// Call it before the library may call the next thread.
inline void HandOver([[maybe_unused]] const void* object) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(const_cast<void*>(object));
#endif
}

// Call it first of all in the next thread.
inline void TakeOver([[maybe_unused]] const void* object) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(const_cast<void*>(object));
#endif
}

}  // namespace cairn
