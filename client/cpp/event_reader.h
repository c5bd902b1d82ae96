// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads the replies of one WatchEvents call. Private to client/cpp.
//
// Thread-safety: Thread-compatible.

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cairn/v1/events.grpc.pb.h"

namespace cairn {

class EventReader {
 public:
  EventReader(v1::Events::Stub& stub, const v1::WatchEventsRequest& request);
  ~EventReader();  // cancels the call
  EventReader(const EventReader&) = delete;
  EventReader& operator=(const EventReader&) = delete;

  // Reads the next batch. Errors: DeadlineExceeded (nothing arrived; the caller may read again);
  // any other error ends the call.
  absl::StatusOr<v1::EventBatch> Read(absl::Time deadline);

 private:
  enum class Step : uint8_t { kStart, kIdle, kRead, kFinish, kOver };

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  Step under_way_ = Step::kStart;
  v1::EventBatch batch_;
  grpc::Status status_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::EventBatch>> reader_;
};

}  // namespace cairn
