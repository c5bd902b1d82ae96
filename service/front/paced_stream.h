// SPDX-License-Identifier: Apache-2.0
#pragma once
// A call that sends messages with pauses between them, until one side ends it.
//
// One operation runs at a time: reading the request, writing a message, or waiting for the alarm
// before the next message. If the stream is ended during an operation, the completion of that
// operation finishes the call. If no operation runs, the function that ends the stream finishes it.
// At most one message is in memory for a reader that has stalled.

#include <google/protobuf/message.h>
#include <grpcpp/alarm.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "service/front/control_call.h"

namespace cairn {

class PacedStream : public ControlCall {
 protected:
  // Borrowed until the next call of Begin() or Next(); null: nothing to write now.
  using Message = const google::protobuf::Message*;

  // Begins to read the request. `end`: the status of the stream if nothing fails.
  PacedStream(const CallPlace& place, absl::Status end);

  // Called when the request has arrived: TakeRequest() returns it. Returns the first message.
  virtual absl::StatusOr<Message> Begin() = 0;
  // Returns the next message, after a pause.
  virtual absl::StatusOr<Message> Next() = 0;
  // The pause before the next message; nullopt: it is ready.
  virtual absl::Duration pause() const = 0;
  // The reader is gone. May run during Begin() or Next().
  virtual void OnGone() {}

 private:
  enum class Step : uint8_t { kNone, kRead, kWrite, kAlarm };

  void OnReadDone(bool ok) final;
  void OnWriteDone(bool ok) final;
  void OnCancel() final;
  void OnAlarm();
  // REQUIRES: no operation runs. Writes, pauses or ends.
  void GoOn(const absl::StatusOr<Message>& message);
  // REQUIRES: no operation runs. `ok`: the last message was sent.
  void Pause(bool ok);
  // Ends the stream: no operation runs, and none shall start.
  void EndAs(const absl::Status& status);
  void FinishIfOver();

  grpc::Alarm alarm_;
  Mutex mutex_;
  Step under_way_ ABSL_GUARDED_BY(mutex_) = Step::kRead;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
