// SPDX-License-Identifier: Apache-2.0
#include "service/path_pool.h"

#include <pthread.h>

#include <optional>
#include <string>

#include "base/check.h"
#include "base/status.h"

namespace cairn {

PathPool::PathPool(int threads, size_t queue_max) : queue_(queue_max) {
  CAIRN_CHECK(threads >= 1 && threads <= limits::kPathThreadsMax);
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, i] { Run(i); });
  }
}

absl::Status PathPool::Submit(Job&& job) {
  if (queue_.TryPush(std::move(job))) {
    return absl::OkStatus();
  }
  refused_.Add();
  if (queue_.is_closed()) {
    return absl::UnavailableError("the daemon is stopping");
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("path pool: ", queue_.Capacity(), " jobs are waiting"));
}

void PathPool::Run(int index) {
  pthread_setname_np(pthread_self(), absl::StrCat("path-", index).c_str());
  for (;;) {
    std::optional<Job> job = queue_.PopUntil(MonotonicNow() + absl::Hours(1));
    if (job.has_value()) {
      running_.Add(1);
      (*job)();
      // What the job held is free before the next one waits.
      job.reset();
      running_.Add(-1);
      jobs_.Add();
    } else if (queue_.is_closed()) {
      return;
    }
  }
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
