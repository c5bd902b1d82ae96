// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bounded thread pool for the work of puts and gets, between the request's arrival on a lane and
// the lane's answer. Between jobs, the threads answer gets whose deadline has passed. So a get
// whose tier does not respond occupies no thread.
//
// Gets run before puts, because encoding one put can take as long as ten gets, and no reader waits
// for its bytes. If a put waits while limits::kGetsPerPut gets run, it runs next. So gets slow puts
// down but do not stop them. Jobs of one kind run first in, first out.
//
// Thread-safety: Thread-safe. Threads are named "path-0", "path-1", …

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/limits.h"

namespace cairn {

class PathPool {
 public:
  // A job runs exactly once, without locks held. Normally it runs on a thread of the pool, with OK.
  // A refused job runs inside Submit() or Continue(), with the reason. So a job that owns a request
  // can always answer the request.
  using Job = absl::AnyInvocable<void(const absl::Status& refusal)>;
  enum class Kind : uint8_t { kGet, kPut };

  // `gets_max` and `puts_max` limit the waiting jobs of each kind. REQUIRES: 1 <= threads <=
  // kPathThreadsMax.
  explicit PathPool(int threads, size_t gets_max = limits::kPathGetsMax,
                    size_t puts_max = limits::kPathPutsMax);
  ~PathPool() { Stop(); }

  // Queues `job` for a thread of the pool. Refusals: ResourceExhausted (too many jobs of the kind
  // wait), Unavailable (the pool stops).
  void Submit(Job job, Kind kind);
  // Queues the continuation of a request after a tier or a device has completed its work. It is
  // queued with the gets. It is never refused for lack of room, because another resource limits the
  // number of continuations: a peer's window, the memory for reads, or kGpuCodecJobsMax.
  void Continue(Job job, Kind kind);

  // Returns true if so many jobs wait that puts should store blocks raw instead of encoding them.
  bool is_busy() const;

  // A function that answers the requests whose deadline has passed, and returns the time until the
  // next deadline. It is called on threads of the pool, possibly on several at once, without locks
  // held.
  using AnswerLate = std::function<absl::Duration()>;
  // Sets the function that is called at each deadline until Stop(). If no thread is idle at a
  // deadline, the function is called after the next job. REQUIRES: SetAnswerLate() is called once.
  void SetAnswerLate(AnswerLate answer_late);
  // Must be called if there is a deadline before the one that AnswerLate returned.
  void Wake();

  // Runs the queued jobs, then joins the threads. Idempotent.
  void Stop();

  // How long jobs of the kind have waited for a thread.
  const Histogram& queue_seconds(Kind kind) const {
    return queue_seconds_[static_cast<size_t>(kind)];
  }
  void Report(MetricSink& sink) const;

 private:
  struct Waiting {
    Job job;
    Kind kind = Kind::kGet;
    absl::Time since;
  };
  using Queue = std::deque<Waiting>;

  void RunJobs(int index);
  // Returns the time of the next deadline, on the clock of MonotonicNow().
  absl::Time NextDeadline();
  // `count_max` is the limit for waiting jobs of the kind. nullopt for a continuation.
  void PushJob(Job job, Kind kind, std::optional<size_t> count_max) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for a job, at most until `until`. Returns false if the pool stops and no job waits. Sets
  // *job to null if a deadline may have passed.
  bool TakeJob(absl::Time until, Job* job) ABSL_LOCKS_EXCLUDED(mutex_);
  Waiting TakeJobLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t gets_max_, puts_max_;
  AnswerLate answer_late_;  // used once has_answer_late_ is true
  std::atomic<bool> has_answer_late_{false};
  mutable Mutex mutex_;
  CondVar pushed_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_woken_ ABSL_GUARDED_BY(mutex_) = false;
  Queue gets_ ABSL_GUARDED_BY(mutex_);  // gets and continuations
  Queue puts_ ABSL_GUARDED_BY(mutex_);
  size_t gets_in_a_row_ ABSL_GUARDED_BY(mutex_) = 0;  // gets taken while a put waited
  Counter jobs_, refused_;
  Gauge running_;
  std::array<Histogram, 2> queue_seconds_;
  std::vector<std::thread> threads_;
};

}  // namespace cairn
