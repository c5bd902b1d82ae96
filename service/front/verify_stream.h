// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stream of one Verify call, written by the thread that verifies.

#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "cairn/v1/admin.pb.h"
#include "service/upkeep/upkeep.h"

namespace cairn {

// gRPC owns it: it deletes itself after End(). Thread-safety: Write() and End() are Owned by one
// thread.
class VerifyStream final : public grpc::ServerWriteReactor<v1::VerifyProgress> {
 public:
  explicit VerifyStream(absl::Time deadline) : deadline_(deadline) {}

  // False: nobody listens any more, or the deadline has passed.
  bool Write(const Upkeep::VerifyProgress& progress, bool is_done);
  // The last call. A status of Cancelled becomes DeadlineExceeded where that is why.
  void End(absl::Status status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  // Waits for the write under way. False: cancelled or late.
  bool WaitIdle();

  const absl::Time deadline_;
  v1::VerifyProgress message_;  // lent to gRPC while is_writing_
  Mutex mutex_;
  CondVar changed_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
