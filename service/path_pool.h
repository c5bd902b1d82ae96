// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bounded threads that run the steps of put and get, between a lane's receive and its send.
// Between jobs they answer what is late, so that a get whose tier does not answer needs no thread.
//
// Gets come before puts: a put may encode for longer than ten gets take, and nobody waits for its
// bytes. After limits::kGetsPerPut gets that were taken while a put waited, one put has its turn,
// so a load of gets slows puts down and does not stop them. Of one kind the first in is the first
// out.
//
// Thread-safety: Thread-safe. Threads are named "path-0", "path-1", …

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
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
  using Job = absl::AnyInvocable<void()>;
  enum class Kind : uint8_t { kGet, kPut };

  // REQUIRES: 1 <= threads <= kPathThreadsMax. The others are the most jobs of a kind that wait.
  explicit PathPool(int threads, size_t gets_max = limits::kPathGetsMax,
                    size_t puts_max = limits::kPathPutsMax);
  ~PathPool() { Stop(); }

  // Runs `job` on a pool thread. ResourceExhausted when too many of the kind wait, Unavailable once
  // stopping; `job` is then untouched, so the caller can still answer with what it holds.
  absl::Status Submit(Job&& job, Kind kind);
  // The same for a continuation: a tier or a device has done its part. It has its turn with gets,
  // and is never refused for want of room: its number is bounded by what it holds, a request of a
  // peer's window, the memory of a read, or one of kGpuCodecJobsMax.
  absl::Status Continue(Job&& job, Kind kind);

  // More is waiting than encoding should be spent on: keep blocks raw.
  bool is_busy() const;

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

  void Run(int index);
  // Returns when deadlines are next due, a point of MonotonicNow().
  absl::Time AnswerLate();
  // `count_max`: nullopt: it is a continuation.
  absl::Status Push(Job&& job, Kind kind, std::optional<size_t> count_max)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for a job until then. False: the pool stops, and nothing waits. *job is null where a
  // deadline may have come.
  bool Take(absl::Time until, Job* job) ABSL_LOCKS_EXCLUDED(mutex_);
  Waiting TakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t gets_max_, puts_max_;
  std::atomic<Deadlines*> deadlines_{nullptr};
  mutable Mutex mutex_;
  CondVar pushed_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_woken_ ABSL_GUARDED_BY(mutex_) = false;
  Queue gets_ ABSL_GUARDED_BY(mutex_);  // and continuations
  Queue puts_ ABSL_GUARDED_BY(mutex_);
  size_t gets_in_a_row_ ABSL_GUARDED_BY(mutex_) = 0;  // taken while a put waited
  Counter jobs_, refused_;
  Gauge running_;
  std::array<Histogram, 2> queue_seconds_;
  std::vector<std::thread> threads_;
};

}  // namespace cairn
