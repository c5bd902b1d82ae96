// SPDX-License-Identifier: Apache-2.0
#include "base/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace cairn {
namespace {

struct Shared {
  Mutex mutex;
  CondVar changed;
  int value ABSL_GUARDED_BY(mutex) = 0;
};

TEST(Mutex, WaiterSeesTheChange) {
  Shared shared;
  std::thread writer([&shared] {
    const MutexLock lock(shared.mutex);
    shared.value = 1;
    shared.changed.NotifyOne();
  });
  bool is_seen = false;
  {
    const MutexLock lock(shared.mutex);
    const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
    while (shared.value == 0 && shared.changed.WaitUntil(shared.mutex, deadline)) {
    }
    is_seen = shared.value == 1;
  }
  writer.join();
  EXPECT_TRUE(is_seen);
}

TEST(Mutex, WaitEndsAtItsDeadline) {
  Shared shared;
  const absl::Time start = MonotonicNow();
  const absl::Time deadline = start + absl::Milliseconds(20);
  const MutexLock lock(shared.mutex);
  while (shared.changed.WaitUntil(shared.mutex, deadline)) {
  }
  EXPECT_GE(MonotonicNow(), deadline);
  EXPECT_FALSE(shared.changed.WaitUntil(shared.mutex, start));
  EXPECT_FALSE(shared.changed.WaitUntil(shared.mutex, absl::InfinitePast()));
}

TEST(Mutex, WaitForEverCanStillBeWoken) {
  Shared shared;
  std::thread writer([&shared] {
    const MutexLock lock(shared.mutex);
    shared.value = 1;
    shared.changed.NotifyAll();
  });
  {
    const MutexLock lock(shared.mutex);
    while (shared.value == 0) {
      EXPECT_TRUE(shared.changed.WaitUntil(shared.mutex, absl::InfiniteFuture()));
    }
  }
  writer.join();
}

TEST(Mutex, TryLockSaysWhetherItIsFree) {
  Mutex mutex;
  ASSERT_TRUE(mutex.TryLock());
  std::thread other([&mutex] {
    if (mutex.TryLock()) {
      ADD_FAILURE() << "taken twice";
      mutex.Unlock();
    }
  });
  other.join();
  mutex.Unlock();
}

// One thread works in holds of which the next follows at once. Without LetWaitersPass() it mostly
// takes the lock again before the other has woken up.
TEST(Mutex, WhoWaitsPassesBetweenTwoHolds) {
  constexpr int kHolds = 200;
  Shared shared;
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    while (!is_over) {
      const MutexLock lock(shared.mutex);
      ++shared.value;
    }
  });
  for (int hold = 0; hold < kHolds; ++hold) {
    int before = 0;
    {
      const MutexLock lock(shared.mutex);
      before = shared.value;
      while (shared.mutex.waiting() == 0) {
        std::this_thread::yield();
      }
    }
    shared.mutex.LetWaitersPass();
    const MutexLock lock(shared.mutex);
    ASSERT_GT(shared.value, before) << "hold " << hold;
  }
  is_over = true;
  other.join();
  shared.mutex.LetWaitersPass();
}

}  // namespace
}  // namespace cairn
