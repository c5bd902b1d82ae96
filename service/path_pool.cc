// SPDX-License-Identifier: Apache-2.0
#include "service/path_pool.h"

#include <pthread.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"

namespace cairn {

PathPool::PathPool(int threads, size_t gets_max, size_t puts_max)
    : gets_max_(gets_max),
      puts_max_(puts_max),
      queue_seconds_{Histogram(LatencyBounds()), Histogram(LatencyBounds())} {
  CAIRN_CHECK(threads >= 1 && threads <= limits::kPathThreadsMax);
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, i] { RunJobs(i); });
  }
}

void PathPool::Submit(Job job, Kind kind) {
  PushJob(std::move(job), kind, kind == Kind::kGet ? gets_max_ : puts_max_);
}

void PathPool::Continue(Job job, Kind kind) { PushJob(std::move(job), kind, std::nullopt); }

void PathPool::PushJob(Job job, Kind kind, std::optional<size_t> count_max) {
  absl::Status refusal;
  const absl::Time now = MonotonicNow();
  {
    const MutexLock lock(mutex_);
    Queue& queue = kind == Kind::kGet || !count_max.has_value() ? gets_ : puts_;
    if (is_stopping_) {
      refusal = absl::UnavailableError("the daemon is stopping");
    } else if (count_max.has_value() && queue.size() >= *count_max) {
      refusal = absl::ResourceExhaustedError(
          absl::StrCat("path pool: ", *count_max, " jobs are waiting"));
    } else {
      queue.push_back({std::move(job), kind, now});
    }
  }
  if (refusal.ok()) {
    return pushed_.NotifyOne();
  }
  refused_.Add();
  job(refusal);
}

bool PathPool::is_busy() const {
  const MutexLock lock(mutex_);
  return gets_.size() + puts_.size() > limits::kPathQueueBusy;
}

bool PathPool::TakeJob(absl::Time until, Job* job) {
  std::optional<Waiting> taken;
  {
    const MutexLock lock(mutex_);
    const auto is_idle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return gets_.empty() && puts_.empty() && !is_stopping_ && !is_woken_;
    };
    while (is_idle() && pushed_.WaitUntil(mutex_, until)) {
    }
    // Check the deadlines before the jobs. A thread that returns here has already checked them.
    if (!std::exchange(is_woken_, false)) {
      if (gets_.empty() && puts_.empty()) {
        return !is_stopping_;
      }
      taken = TakeJobLocked();
    }
  }
  if (taken.has_value()) {
    queue_seconds_[static_cast<size_t>(taken->kind)].Observe(MonotonicNow() - taken->since);
    *job = std::move(taken->job);
  }
  return true;
}

PathPool::Waiting PathPool::TakeJobLocked() {
  const bool is_put = !puts_.empty() && (gets_.empty() || gets_in_a_row_ >= limits::kGetsPerPut);
  Queue& queue = is_put ? puts_ : gets_;
  Waiting taken = std::move(queue.front());
  queue.pop_front();
  gets_in_a_row_ = is_put || puts_.empty() ? 0 : gets_in_a_row_ + 1;
  return taken;
}

void PathPool::RunJobs(int index) {
  pthread_setname_np(pthread_self(), absl::StrCat("path-", index).c_str());
  Job job;
  while (TakeJob(NextDeadline(), &job)) {
    if (job == nullptr) {
      continue;  // a deadline has passed, or Wake() was called
    }
    running_.Add(1);
    job(absl::OkStatus());
    // Free the job's memory before waiting for the next job.
    job = nullptr;
    running_.Add(-1);
    jobs_.Add();
  }
}

absl::Time PathPool::NextDeadline() {
  // The acquire load pairs with the release store in SetAnswerLate().
  const absl::Duration rest =
      has_answer_late_.load(std::memory_order_acquire) ? answer_late_() : absl::InfiniteDuration();
  return MonotonicNow() + std::min(rest, absl::Hours(1));
}

void PathPool::SetAnswerLate(AnswerLate answer_late) {
  CAIRN_CHECK(answer_late_ == nullptr);
  answer_late_ = std::move(answer_late);
  // The release store pairs with the acquire load in NextDeadline().
  has_answer_late_.store(true, std::memory_order_release);
  Wake();
}

void PathPool::Wake() {
  {
    const MutexLock lock(mutex_);
    is_woken_ = true;
  }
  pushed_.NotifyOne();
}

void PathPool::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  pushed_.NotifyAll();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) {
      thread.join();
    }
  }
}

void PathPool::Report(MetricSink& sink) const {
  size_t waiting = 0;
  {
    const MutexLock lock(mutex_);
    waiting = gets_.size() + puts_.size();
  }
  sink.AddGauge("cairn_path_threads", "Threads of the path pool.", {},
                static_cast<double>(threads_.size()));
  sink.AddGauge("cairn_path_jobs_running", "Jobs that run on the path pool.", {},
                static_cast<double>(running_.Value()));
  sink.AddGauge("cairn_path_jobs_waiting", "Jobs that wait for the path pool.", {},
                static_cast<double>(waiting));
  sink.AddCounter("cairn_path_jobs_total", "Jobs that the path pool has run.", {}, jobs_.Value());
  sink.AddCounter("cairn_path_refused_total", "Jobs refused because too many waited.", {},
                  refused_.Value());
}

}  // namespace cairn
