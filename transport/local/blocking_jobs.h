// SPDX-License-Identifier: Apache-2.0
#pragma once
// A thread pool for work that a peer can block. For example, closing a descriptor that a peer has
// sent can take hours or forever, and so can inspecting a peer's memory while the peer writes
// there. No other thread waits for the pool's threads.
//
// A party (base/newcomers.h) uses at most half of the threads, so that the jobs of other parties
// can run.
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

  // Queues `job` after the earlier jobs of its party. The caller limits the number of jobs. A job
  // owns everything that it uses, because it may outlive this object and all others.
  void Run(uint64_t party, Job job);
  // The number of the party's jobs, waiting or running.
  int count(uint64_t party) const;
  // Waits until no job is left, but at most `wait`. A job that is still blocked then keeps its
  // thread. The jobs that are queued after it still run, without this object. No job may be added
  // any more. Idempotent.
  void Stop(absl::Duration wait);

 private:
  struct State;
  // Shared with the threads, because a blocked thread outlives this object.
  const std::shared_ptr<State> state_;
};

}  // namespace cairn::transport
