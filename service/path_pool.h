// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bounded threads that run the steps of put and get, between a lane's receive and its send.
// Between jobs they answer what is late, so that a get whose tier does not answer needs no thread.
//
// Thread-safety: Thread-safe. Threads are named "path-0", "path-1", …

#include <atomic>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/bounded_queue.h"
#include "base/metric.h"
#include "service/limits.h"

namespace cairn {

class PathPool {
 public:
  using Job = absl::AnyInvocable<void()>;

  // REQUIRES: 1 <= threads <= kPathThreadsMax. `queue_max`: jobs that may wait.
  explicit PathPool(int threads, size_t queue_max = limits::kPathQueueMax);
  ~PathPool() { Stop(); }

  // Runs `job` on a pool thread. ResourceExhausted when the queue is full, Unavailable once
  // stopping; `job` is then untouched, so the caller can still answer with what it holds.
  absl::Status Submit(Job&& job);
  // The same for a put or get that comes back from the codec of a device. It has at most
  // kGpuCodecJobsMax of them, and the queue has that much room for them alone: never
  // ResourceExhausted.
  absl::Status SubmitCoded(Job&& job);

  // More is waiting than encoding should be spent on: keep blocks raw.
  bool is_busy() const { return queue_.Count() > limits::kPathQueueBusy; }

  // Has deadlines that pass while nobody works for those who wait.
  class Deadlines {
   public:
    // Answers what is late, and returns when it is next due, from now on. Called on threads of the
    // pool, several at once, with no lock held.
    virtual absl::Duration AnswerLate() = 0;

   protected:
    ~Deadlines() = default;
  };
  // Looked after from now on, until Stop(): one job late at most, where no thread is idle.
  void SetDeadlines(Deadlines& deadlines);
  // One may be due sooner than AnswerLate() said.
  void Wake();

  // Runs what was submitted, then joins. Idempotent.
  void Stop();

  void Report(MetricSink& sink) const;

 private:
  void Run(int index);
  // Returns when deadlines are next due, a point of MonotonicNow().
  absl::Time AnswerLate();

  absl::Status Push(Job&& job, size_t spare);

  BoundedQueue<Job> queue_;
  std::atomic<Deadlines*> deadlines_{nullptr};
  Counter jobs_, refused_;
  Gauge running_;
  std::vector<std::thread> threads_;
};

}  // namespace cairn
