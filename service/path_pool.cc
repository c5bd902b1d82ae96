// SPDX-License-Identifier: Apache-2.0
#include "service/path_pool.h"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "base/check.h"
#include "base/status.h"

namespace cairn {

PathPool::PathPool(int threads, size_t queue_max) : queue_(queue_max + limits::kGpuCodecJobsMax) {
  CAIRN_CHECK(threads >= 1 && threads <= limits::kPathThreadsMax);
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, i] { Run(i); });
  }
}

absl::Status PathPool::Submit(Job&& job) { return Push(std::move(job), limits::kGpuCodecJobsMax); }

absl::Status PathPool::SubmitCoded(Job&& job) { return Push(std::move(job), 0); }

absl::Status PathPool::Push(Job&& job, size_t spare) {
  if (queue_.TryPush(std::move(job), spare)) {
    return absl::OkStatus();
  }
  refused_.Add();
  if (queue_.is_closed()) {
    return absl::UnavailableError("the daemon is stopping");
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "path pool: ", queue_.Capacity() - limits::kGpuCodecJobsMax, " jobs are waiting"));
}

void PathPool::Run(int index) {
  pthread_setname_np(pthread_self(), absl::StrCat("path-", index).c_str());
  for (;;) {
    std::optional<Job> job = queue_.PopUntil(AnswerLate());
    if (!job.has_value() && queue_.is_closed()) {
      job = queue_.TryPop();  // one that came between the end of the wait and Stop()
      if (!job.has_value()) {
        return;
      }
    }
    if (!job.has_value() || *job == nullptr) {
      continue;  // a deadline has come, or Wake()
    }
    running_.Add(1);
    (*job)();
    // What the job held is free before the next one waits.
    job.reset();
    running_.Add(-1);
    jobs_.Add();
  }
}

absl::Time PathPool::AnswerLate() {
  // Acquire: what SetDeadlines() released.
  Deadlines* deadlines = deadlines_.load(std::memory_order_acquire);
  const absl::Duration rest =
      deadlines == nullptr ? absl::InfiniteDuration() : deadlines->AnswerLate();
  return MonotonicNow() + std::min(rest, absl::Hours(1));
}

void PathPool::SetDeadlines(Deadlines& deadlines) {
  // Release: AnswerLate() acquires.
  deadlines_.store(&deadlines, std::memory_order_release);
  Wake();
}

void PathPool::Wake() {
  // Where the queue is full no thread sleeps, and each looks at deadlines after its job.
  std::ignore = queue_.TryPush(Job(), limits::kGpuCodecJobsMax);
}

void PathPool::Stop() {
  queue_.Close();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) {
      thread.join();
    }
  }
}

void PathPool::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_path_threads", "Threads of the path pool.", {},
                static_cast<double>(threads_.size()));
  sink.AddGauge("cairn_path_jobs_running", "Jobs that run on the path pool.", {},
                static_cast<double>(running_.Value()));
  sink.AddGauge("cairn_path_jobs_waiting", "Jobs that wait for the path pool.", {},
                static_cast<double>(queue_.Count()));
  sink.AddCounter("cairn_path_jobs_total", "Jobs that the path pool has run.", {}, jobs_.Value());
  sink.AddCounter("cairn_path_refused_total", "Jobs refused because too many were waiting.", {},
                  refused_.Value());
}

}  // namespace cairn
