// SPDX-License-Identifier: Apache-2.0
#pragma once
// A blocking wait for a completion, for threads of the tier that may wait for the device.

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "service/tier/tier.h"

namespace cairn {

// Calls `submit` with a completion, waits for it, and returns its status. REQUIRES: it runs, once.
inline absl::Status AwaitDone(absl::FunctionRef<void(TierDone done)> submit) {
  Mutex mutex;
  CondVar over;
  bool is_over = false;
  absl::Status result;
  submit([&](absl::Status status) {
    const MutexLock lock(mutex);
    result = std::move(status);
    is_over = true;
    over.NotifyAll();  // under the lock: the waiter destroys it
  });
  const MutexLock lock(mutex);
  while (!is_over) {
    over.WaitUntil(mutex, absl::InfiniteFuture());
  }
  return result;
}

}  // namespace cairn
