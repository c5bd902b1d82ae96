// SPDX-License-Identifier: Apache-2.0
#pragma once
// Threads for jobs that a peer can hold up: to close a descriptor that it sent may block for hours
// or for ever, and so may a look at its memory while it writes there. No other thread waits for
// them.
//
// A party (base/newcomers.h) has half of the threads at most, so that the jobs of others go on.
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

  // Runs `job` soon, and after earlier ones of the party. Its caller bounds how many there are. The
  // job owns what it uses: it may outlive this object, and all else.
  void Run(uint64_t party, Job job);
  // Of the party: that wait or run.
  int count(uint64_t party) const;
  // Waits until no job is left, `wait` at most. Then one that is held up goes on by itself, with
  // its thread, and those behind it with it. No job may be added any more. Idempotent.
  void Stop(absl::Duration wait);

 private:
  struct State;
  // Shared with the threads, of which one that is held up outlives this object.
  const std::shared_ptr<State> state_;
};

}  // namespace cairn::transport
