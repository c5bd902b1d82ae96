// SPDX-License-Identifier: Apache-2.0
#pragma once
// A call whose answer is messages with pauses between them, until one side ends it.
//
// One thing is under way at a time: the request being read, a message being written, or the alarm
// that precedes the next. Whoever sees it end after the stream was to end finishes the stream;
// where nothing is under way, that is who ends it. A reader that does not read keeps one message.

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
  // Borrowed until the next call of Begin() or Next(); null: nothing is to be written now.
  using Message = const google::protobuf::Message*;

  // Reads the request. `end`: what the stream ends as, where nothing failed.
  PacedStream(const CallPlace& place, absl::Status end);

  // The request has come, for TakeRequest(); the first message.
  virtual absl::StatusOr<Message> Begin() = 0;
  // After a pause.
  virtual absl::StatusOr<Message> Next() = 0;
  // Before the next message; none: it is there already.
  virtual absl::Duration pause() const = 0;
  // The reader is gone. Perhaps while Begin() or Next() runs.
  virtual void OnGone() {}

 private:
  enum class Step : uint8_t { kNone, kRead, kWrite, kAlarm };

  void OnReadDone(bool ok) final;
  void OnWriteDone(bool ok) final;
  void OnCancel() final;
  void OnAlarm();
  // Nothing is under way; writes, pauses or ends.
  void GoOn(const absl::StatusOr<Message>& message);
  // Nothing is under way. `ok`: the last message left.
  void Pause(bool ok);
  // Nothing is under way any more, and nothing shall be.
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
