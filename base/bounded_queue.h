// SPDX-License-Identifier: Apache-2.0
#pragma once
// A queue between threads with a fixed capacity. A full queue refuses the value, and the caller
// answers ResourceExhausted.
//
//   if (!queue.TryPush(std::move(job))) return absl::ResourceExhaustedError("path pool is full");
//   // job is untouched
//
//   while (std::optional<Job> job = queue.PopUntil(deadline)) { … }
//
// Thread-safety: Thread-safe, any number of producers and consumers. First in, first out.
// Cost: allocates only when it is constructed, and when moving a T allocates.
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/check.h"
#include "base/mutex.h"

namespace cairn {

template <typename T>
class BoundedQueue {
 public:
  // REQUIRES: capacity > 0.
  explicit BoundedQueue(std::size_t capacity) : slots_(capacity) { CAIRN_CHECK(capacity > 0); }

  // Appends `value`. The last `spare` free slots are reserved for other callers. Returns false, and
  // leaves `value` unchanged, if the queue is closed or no other slot is free.
  [[nodiscard]] bool TryPush(T&& value, std::size_t spare = 0) {
    {
      const MutexLock lock(mutex_);
      if (closed_ || count_ + spare >= slots_.size()) {
        return false;
      }
      slots_[(first_ + count_) % slots_.size()] = std::move(value);
      ++count_;
    }
    pushed_.NotifyOne();
    return true;
  }

  // Removes and returns the oldest value. Returns nullopt if the queue is still empty at `deadline`
  // (on the clock of MonotonicNow()). After Close(), returns the values that were pushed before,
  // and then nullopt.
  std::optional<T> PopUntil(absl::Time deadline) {
    const MutexLock lock(mutex_);
    while (count_ == 0) {
      if (closed_) {
        return std::nullopt;
      }
      if (!pushed_.WaitUntil(mutex_, deadline) && count_ == 0) {
        return std::nullopt;
      }
    }
    return PopLocked();
  }

  // Like PopUntil(), but does not wait.
  std::optional<T> TryPop() {
    const MutexLock lock(mutex_);
    if (count_ == 0) {
      return std::nullopt;
    }
    return PopLocked();
  }

  // Refuses all later pushes and wakes all waiting threads.
  void Close() {
    {
      const MutexLock lock(mutex_);
      closed_ = true;
    }
    pushed_.NotifyAll();
  }

  bool is_closed() const {
    const MutexLock lock(mutex_);
    return closed_;
  }
  std::size_t Count() const {
    const MutexLock lock(mutex_);
    return count_;
  }
  std::size_t Capacity() const { return capacity_; }

 private:
  std::optional<T> PopLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::optional<T> value = std::move(slots_[first_]);
    slots_[first_].reset();
    first_ = (first_ + 1) % slots_.size();
    --count_;
    return value;
  }

  mutable Mutex mutex_;
  CondVar pushed_;
  std::vector<std::optional<T>> slots_ ABSL_GUARDED_BY(mutex_);
  const std::size_t capacity_ = slots_.size();
  std::size_t first_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
