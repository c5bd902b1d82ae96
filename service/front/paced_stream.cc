// SPDX-License-Identifier: Apache-2.0
#include "service/front/paced_stream.h"

#include <chrono>
#include <utility>

#include "base/mutex.h"

namespace cairn {

PacedStream::PacedStream(const CallPlace& place, absl::Status end)
    : ControlCall(place.ForStream()), end_(std::move(end)) {
  if (!ReadHeld()) EndAs(absl::ResourceExhaustedError("too many calls at once"));
}

void PacedStream::OnReadDone(bool ok) {
  TakeOver(this);
  if (!ok) {
    HoldNothing();
    return EndAs(absl::InvalidArgumentError("the call has no request"));
  }
  const absl::StatusOr<Message> first = Begin();
  HoldNothing();
  GoOn(first);
}

void PacedStream::OnWriteDone(bool ok) {
  TakeOver(this);
  const bool is_due = ok && pause() == absl::ZeroDuration();
  if (is_due) return GoOn(Next());
  Pause(ok);
}

void PacedStream::Pause(bool ok) {
  {
    const MutexLock lock(mutex_);
    is_ending_ = is_ending_ || !ok;
    under_way_ = is_ending_ ? Step::kNone : Step::kAlarm;
    if (!is_ending_) {
      HandOver(this);
      alarm_.Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(pause()),
                 [this](bool) { OnAlarm(); });
    }
  }
  FinishIfOver();
}

void PacedStream::OnCancel() {
  TakeOver(this);
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
    if (under_way_ == Step::kAlarm) alarm_.Cancel();  // its callback runs, soon
  }
  OnGone();
  FinishIfOver();
  HandOver(this);  // to OnDone(), which gRPC calls once this is over, whoever finished
}

void PacedStream::OnAlarm() {
  TakeOver(this);
  GoOn(Next());
}

void PacedStream::GoOn(const absl::StatusOr<Message>& message) {
  if (!message.ok()) return EndAs(message.status());
  if (*message == nullptr) return Pause(true);
  bool is_written = false;
  {
    const MutexLock lock(mutex_);
    is_written = !is_ending_;
    under_way_ = is_written ? Step::kWrite : Step::kNone;
  }
  if (!is_written) return FinishIfOver();
  const grpc::ByteBuffer* bytes = Serialize(**message);
  HandOver(this);
  StartWrite(bytes);
}

void PacedStream::EndAs(const absl::Status& status) {
  {
    const MutexLock lock(mutex_);
    under_way_ = Step::kNone;
    is_ending_ = true;
    end_ = status;
  }
  FinishIfOver();
}

void PacedStream::FinishIfOver() {
  absl::Status end;
  {
    const MutexLock lock(mutex_);
    if (!is_ending_ || under_way_ != Step::kNone || is_finished_) return;
    is_finished_ = true;
    end = end_;
  }
  FinishAs(end);
}

}  // namespace cairn
