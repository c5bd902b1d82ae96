// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stream of one Verify call. The verifying thread never waits for the client: while a message
// is being sent, newer progress replaces older progress.

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "cairn/v1/admin.pb.h"
#include "service/front/control_call.h"

namespace cairn {

// Thread-safety: Write() and End() are Owned by one thread.
class VerifyStream final : public ControlCall {
 public:
  // Starts the verification. If it returns OK, End() is called later. Runs on a gRPC thread.
  using Begin = std::function<absl::Status(VerifyStream& stream, uint64_t space_id)>;
  VerifyStream(const CallPlace& place, const Begin& begin);

  // Returns false if the client is gone or the deadline has passed.
  bool Write(const v1::VerifyProgress& progress);
  // Ends the stream. Call it last. Changes Cancelled to DeadlineExceeded if the deadline was the
  // cause.
  void End(absl::Status status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;

 private:
  enum class Step : uint8_t { kNone, kWrite, kFinish };
  // Returns the next action, which the caller must perform. Each action is returned only once.
  Step TakeStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Take(Step step);

  const Begin& begin_;
  const absl::Time deadline_;
  Mutex mutex_;
  v1::VerifyProgress writing_;  // owned by the caller that took kWrite
  std::optional<v1::VerifyProgress> next_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_;  // set once, under the lock
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
