// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hands tasks from other threads to a lane and wakes the lane. A spinning lane polls the queue.
// Only a lane that has announced its sleep is woken, because waking costs a system call.
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
// Thread-safety: Push(), Close() and Wake() are Thread-safe; the rest is Owned by the lane thread.

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

  // Appends a task. Errors: ResourceExhausted (full), Unavailable (closed); the task is then
  // dropped.
  absl::Status Push(Task task);
  // Refuses later tasks. Queued tasks still run.
  void Close();
  // Ends the lane's current or next sleep.
  void Wake();

  // Runs the tasks that are queued on entry, oldest first. Returns their number.
  int RunAll(Lane& lane);
  bool IsEmpty() const { return tasks_.Count() == 0; }
  // Readable while a wake-up is pending; level-triggered.
  int event_fd() const { return event_.get(); }
  // Announces that the lane is about to sleep. Returns false if there is work: do not sleep then.
  bool PrepareSleep();
  // Call it after every sleep that PrepareSleep() allowed.
  void Awake();

 private:
  BoundedQueue<Task> tasks_;
  std::atomic<bool> is_asleep_{false};
  Fd event_;
};

}  // namespace cairn::transport
