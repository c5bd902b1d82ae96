// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/event_reader.h"

#include <utility>

#include "client/cpp/rpc.h"

namespace cairn {

EventReader::EventReader(v1::Events::Stub& stub, const v1::WatchEventsRequest& request)
    : reader_(stub.AsyncWatchEvents(&context_, request, &queue_, this)) {}

EventReader::~EventReader() {
  context_.TryCancel();
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {  // terminates: at most one operation runs, and the call is
                                    // cancelled
  }
}

absl::StatusOr<v1::EventBatch> EventReader::Read(absl::Time deadline) {
  while (under_way_ != Step::kOver) {  // ends with the call, or at the deadline
    if (under_way_ == Step::kIdle) {
      under_way_ = Step::kRead;
      reader_->Read(&batch_, this);
    }
    void* tag = nullptr;
    bool ok = false;
    const auto next = queue_.AsyncNext(&tag, &ok, RpcDeadline(deadline));
    if (next != grpc::CompletionQueue::GOT_EVENT) {
      return absl::DeadlineExceededError("no events in that time");
    }
    if (under_way_ == Step::kFinish) {
      under_way_ = Step::kOver;
    } else if (!ok) {
      under_way_ = Step::kFinish;
      reader_->Finish(&status_, this);
    } else if (std::exchange(under_way_, Step::kIdle) == Step::kRead) {
      return std::exchange(batch_, {});
    }
  }
  return status_.ok() ? absl::UnavailableError("the daemon ended the call") : FromGrpc(status_);
}

}  // namespace cairn
