// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers calls that deleted something, or changed a policy, once no restart brings back what was.
// A tier makes whoever waits for that wait, so a thread of its own does, for all calls that came
// meanwhile at once.
//
// Thread-safety: Thread-safe. The thread is named "freed"; there is none without a lasting tier.

#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "service/front/control_call.h"
#include "service/tier/tiers.h"

namespace cairn {

class FreedCalls {
 public:
  explicit FreedCalls(Tiers& tiers);
  ~FreedCalls() { Stop(); }

  // Runs once: in the call, or later on the thread.
  // - DeadlineExceeded, Unavailable: it is done, but a restart may bring back what was.
  using Done = absl::AnyInvocable<void(absl::Status status) &&>;
  void Await(absl::Time deadline, Done done);
  // Answers the call then, or at its deadline.
  template <typename Reply>
  void Answer(const ControlCall& call, Reply reply, const ReplyDone<Reply>& done) {
    Await(call.deadline() - kAnswerTime,
          [done, reply = std::move(reply)](const absl::Status& status) mutable {
            done(status.ok() ? absl::StatusOr<Reply>(std::move(reply)) : status);
          });
  }

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
