// SPDX-License-Identifier: Apache-2.0
#pragma once
// A few threads that run jobs which wait for the network.
//
// Thread-safety: Thread-safe. Stop() is Owned by one thread.

#include <pthread.h>

#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/bounded_queue.h"

namespace cairn {

class Workers {
 public:
  using Job = absl::AnyInvocable<void() &&>;
  // The threads are named `name` and a number. At most `jobs_max` jobs wait.
  Workers(const std::string& name, int threads, size_t jobs_max) : jobs_(jobs_max) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Run(); });
      ::pthread_setname_np(threads_.back().native_handle(), absl::StrCat(name, "-", i).c_str());
    }
  }
  ~Workers() { Stop(); }

  // Queues the job. Returns false, and leaves the job unchanged, if too many jobs wait, or after
  // Stop().
  [[nodiscard]] bool Submit(Job&& job) { return jobs_.TryPush(std::move(job)); }
  // Runs the queued jobs, then joins. Idempotent.
  void Stop() {
    jobs_.Close();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  void Run() {
    while (std::optional<Job> job = jobs_.PopUntil(absl::InfiniteFuture())) std::move (*job)();
  }

  BoundedQueue<Job> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace cairn
