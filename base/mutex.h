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
#include <atomic>
#include <condition_variable>
#include <cstdint>
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

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (!mutex_.try_lock()) {
      LockAfterOthers();
    }
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  [[nodiscard]] bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

  // Returns once as many threads as wait for the lock now have had it. std::mutex is not fair: who
  // works in many short holds calls this between two of them, or may starve the others.
  void LetWaitersPass() ABSL_LOCKS_EXCLUDED(this) {
    const uint32_t had_before = had_.load(std::memory_order_seq_cst);
    const uint32_t waiting = waiting_.load(std::memory_order_seq_cst);
    // Ends: each of `waiting` gets the lock, which the caller does not hold, and counts itself.
    for (uint32_t had = had_before; had - had_before < waiting;
         had = had_.load(std::memory_order_seq_cst)) {
      had_.wait(had, std::memory_order_seq_cst);
    }
  }
  // Threads in Lock() that do not have it yet.
  uint32_t waiting() const { return waiting_.load(std::memory_order_relaxed); }

 private:
  friend class CondVar;

  void LockAfterOthers() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    mutex_.lock();
    // In this order, the reverse of LetWaitersPass(): whom that saw waiting has yet to count.
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
    had_.fetch_add(1, std::memory_order_seq_cst);
    had_.notify_all();
  }

  std::mutex mutex_;
  std::atomic<uint32_t> waiting_{0};
  std::atomic<uint32_t> had_{0};  // how often the lock was had after waiting for it
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
