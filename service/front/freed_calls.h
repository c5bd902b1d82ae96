// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers calls that deleted blocks or changed a policy, once the change is durable. A thread waits
// for all such calls, because the wait blocks.
//
// Thread-safety: Thread-safe. The thread is named "freed". It runs only with a persistent tier.

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

  // Runs exactly once: during Await(), or later on the thread. The status is OK if the change is
  // durable. With DeadlineExceeded or Unavailable the change is made, but a restart may undo it.
  using Done = absl::AnyInvocable<void(absl::Status status) &&>;
  void Await(absl::Time deadline, Done done);
  // Answers the call when its change is durable, or at its deadline.
  template <typename Reply>
  void Answer(const ControlCall& call, Reply reply, const ReplyDone<Reply>& done) {
    Await(call.deadline() - kAnswerTime,
          [done, reply = std::move(reply)](const absl::Status& status) mutable {
            done(status.ok() ? absl::StatusOr<Reply>(std::move(reply)) : status);
          });
  }

  // Answers waiting calls within a second. Later calls are answered at once. Idempotent.
  void Stop();

 private:
  struct Waiting {
    absl::Time deadline;
    Done done;
  };

  void Run();
  // Answers the calls that can be answered now, and keeps the others in `waiting`.
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
