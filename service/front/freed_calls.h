// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers calls that deleted something once no restart brings it back. A tier makes whoever waits
// for that wait, so a thread of its own does, for all calls that came meanwhile at once.
//
// Thread-safety: Thread-safe. The thread is named "freed"; there is none without a lasting tier.

#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "service/tier/tiers.h"

namespace cairn {

class FreedCalls {
 public:
  explicit FreedCalls(Tiers& tiers);
  ~FreedCalls() { Stop(); }

  // Runs once: in the call, or later on the thread.
  // - DeadlineExceeded, Unavailable: it is deleted, but a restart may bring it back.
  using Done = absl::AnyInvocable<void(absl::Status status) &&>;
  void Await(absl::Time deadline, Done done);

  // Answers those that wait, within a second, and those to come at once. Idempotent.
  void Stop();

 private:
  struct Waiting {
    absl::Time deadline;
    Done done;
  };

  void Run();
  // Answers those that need not wait any longer; the rest stays.
  void AwaitSome(std::vector<Waiting>& waiting);

  Tiers& tiers_;
  const bool has_lasting_;
  Mutex mutex_;
  CondVar came_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace cairn
