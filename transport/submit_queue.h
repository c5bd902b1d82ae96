// SPDX-License-Identifier: Apache-2.0
#pragma once
// Passes tasks from other threads to a lane. A lane that spins polls the queue. A lane that sleeps
// must be woken with a system call. The queue makes this call only if the lane has announced its
// sleep.
//
//   lane thread                                   any thread
//   while (!stopping) {                           queue.Push(task);
//     if (queue.RunAll(*this) + … > 0) continue;
//     if (spun long enough && queue.PrepareSleep()) {
//       epoll_wait(…);        // event_fd() is in the set
//       queue.Awake();
//     }
//   }
//
// Thread-safety: Push(), Close() and Wake() are Thread-safe. The rest is Owned by the lane thread.

#include <atomic>
#include <cstddef>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/bounded_queue.h"
#include "base/file.h"
#include "transport/transport.h"

namespace cairn::transport {

class SubmitQueue {
 public:
  using Task = absl::AnyInvocable<void(Lane&)>;

  // REQUIRES: tasks_max > 0.
  explicit SubmitQueue(size_t tasks_max);

  // Appends a task. Errors: ResourceExhausted (the queue is full), Unavailable (the queue is
  // closed). After an error the task is dropped.
  absl::Status Push(Task task);
  // Refuses new tasks. Queued tasks still run.
  void Close();
  // Ends the lane's current sleep, or its next one.
  void Wake();

  // Runs the tasks that are in the queue when it is called, the oldest first. Returns their number.
  int RunAll(Lane& lane);
  bool IsEmpty() const { return tasks_.Count() == 0; }
  // Readable while the lane must wake up (level-triggered).
  int event_fd() const { return event_.get(); }
  // Announces that the lane is about to sleep. Returns false if there is work; the lane must not
  // sleep then.
  bool PrepareSleep();
  // Must be called after every sleep that PrepareSleep() allowed.
  void Awake();

 private:
  BoundedQueue<Task> tasks_;
  std::atomic<bool> is_asleep_{false};
  Fd event_;
};

}  // namespace cairn::transport
