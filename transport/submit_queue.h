// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tasks for a lane from other threads, and the lane's sleep. A lane that spins looks at the queue
// by itself; only one that has said it sleeps is woken, since waking costs a system call.
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

  // ResourceExhausted when full, Unavailable when closed; the task is then dropped.
  absl::Status Push(Task task);
  // Refuses tasks from now on. Those already taken still run.
  void Close();
  // Ends the lane's sleep, or its next one.
  void Wake();

  // Runs what is there on entry, oldest first; answers how many.
  int RunAll(Lane& lane);
  bool IsEmpty() const { return tasks_.Count() == 0; }
  // Readable while a wake-up is due; level-triggered.
  int event_fd() const { return event_.get(); }
  // Says that the lane is about to sleep. False: there is work, do not.
  bool PrepareSleep();
  // After every sleep that PrepareSleep() allowed.
  void Awake();

 private:
  BoundedQueue<Task> tasks_;
  std::atomic<bool> is_asleep_{false};
  Fd event_;
};

}  // namespace cairn::transport
