// SPDX-License-Identifier: Apache-2.0
#pragma once
// A thread pool for work that a peer can block: closing a descriptor that it sent can take hours or
// forever, and so can inspecting its memory while it writes there. No other thread waits for these
// threads.
//
// A party (base/newcomers.h) uses at most half of the threads, so that the jobs of other parties
// run.
//
// Thread-safety: Thread-safe. The threads are named "cairn-hello".

#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace cairn::transport {

class BlockingJobs {
 public:
  using Job = absl::AnyInvocable<void()>;

  static constexpr int kThreads = 8;
  static constexpr int kThreadsPerParty = kThreads / 2;

  BlockingJobs();
  ~BlockingJobs() { Stop(absl::ZeroDuration()); }
  BlockingJobs(const BlockingJobs&) = delete;
  BlockingJobs& operator=(const BlockingJobs&) = delete;

  // Queues `job` behind the earlier jobs of its party. The caller bounds the number of jobs. A job
  // owns everything it uses, because it may outlive this object and everything else.
  void Run(uint64_t party, Job job);
  // The number of the party's jobs that wait or run.
  int count(uint64_t party) const;
  // Waits at most `wait` until no job is left. After that a blocked job keeps its thread, and the
  // jobs queued behind it keep running on their own. No job may be added any more. Idempotent.
  void Stop(absl::Duration wait);

 private:
  struct State;
  // Shared with the threads: a blocked thread outlives this object.
  const std::shared_ptr<State> state_;
};

}  // namespace cairn::transport
