// SPDX-License-Identifier: Apache-2.0
#include "service/front/verify_stream.h"

#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "service/limits.h"

namespace cairn {

VerifyStream::VerifyStream(const CallPlace& place, const Begin& begin)
    : ControlCall(place.ForStream()),
      begin_(begin),
      deadline_(deadline(absl::Milliseconds(limits::kVerifyMsMax))) {
  if (!ReadHeld()) FinishAs(absl::ResourceExhaustedError("too many calls at once"));
}

void VerifyStream::OnReadDone(bool ok) {
  TakeOver(this);
  v1::VerifyRequest request;
  absl::Status status = ok ? TakeRequest(RequestBound(), &request)
                           : absl::InvalidArgumentError("the call has no request");
  HoldNothing();
  if (status.ok()) status = begin_(*this, request.space_id());
  if (!status.ok()) FinishAs(status);
}

bool VerifyStream::Write(const v1::VerifyProgress& progress) {
  Step step = Step::kNone;
  {
    const MutexLock lock(mutex_);
    if (is_cancelled_ || MonotonicNow() >= deadline_) return false;
    next_ = progress;
    step = TakeStep();
  }
  Take(step);
  return true;
}

void VerifyStream::End(absl::Status status) {
  if (absl::IsCancelled(status) && MonotonicNow() >= deadline_) {
    status = absl::DeadlineExceededError("verify: the deadline has passed");
  }
  HoldCall();  // until the reader has read the rest
  Step step = Step::kNone;
  {
    const MutexLock lock(mutex_);
    end_ = std::move(status);
    step = TakeStep();
  }
  Take(step);  // if it is kNone, the stream may be destroyed already
}

VerifyStream::Step VerifyStream::TakeStep() {
  if (is_writing_ || is_finished_) return Step::kNone;
  if (next_.has_value() && !is_cancelled_) {
    writing_ = *std::exchange(next_, std::nullopt);
    is_writing_ = true;
    return Step::kWrite;
  }
  if (!end_.has_value()) return Step::kNone;
  is_finished_ = true;
  return Step::kFinish;
}

void VerifyStream::Take(Step step) {
  if (step == Step::kWrite) {
    const grpc::ByteBuffer* bytes = Serialize(writing_);
    HandOver(this);
    StartWrite(bytes);
  }
  if (step == Step::kFinish) FinishAs(*end_);
}

void VerifyStream::OnWriteDone(bool ok) {
  TakeOver(this);
  Step step = Step::kNone;
  {
    const MutexLock lock(mutex_);
    is_writing_ = false;
    is_cancelled_ = is_cancelled_ || !ok;
    step = TakeStep();
  }
  Take(step);
}

void VerifyStream::OnCancel() {
  TakeOver(this);
  const MutexLock lock(mutex_);
  is_cancelled_ = true;
}

}  // namespace cairn
