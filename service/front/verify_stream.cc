// SPDX-License-Identifier: Apache-2.0
#include "service/front/verify_stream.h"

#include "service/front/rpc.h"

namespace cairn {

bool VerifyStream::WaitIdle() {
  const MutexLock lock(mutex_);
  while (is_writing_ && !is_cancelled_) {
    if (!changed_.WaitUntil(mutex_, deadline_) && is_writing_) return false;
  }
  return !is_cancelled_ && MonotonicNow() < deadline_;
}

bool VerifyStream::Write(const Upkeep::VerifyProgress& progress, bool is_done) {
  if (!WaitIdle()) return false;
  message_.set_images_checked(progress.images_checked);
  message_.set_images_total(progress.images_total);
  message_.set_bytes_checked(progress.bytes_checked);
  message_.set_corrupt_images(progress.corrupt_images);
  message_.set_done(is_done);
  {
    const MutexLock lock(mutex_);
    is_writing_ = true;
  }
  StartWrite(&message_);
  return true;
}

void VerifyStream::End(absl::Status status) {
  if (!WaitIdle() && MonotonicNow() >= deadline_) {
    status = absl::DeadlineExceededError("verify: the deadline has passed; 60 s at most");
  }
  Finish(ToGrpc(status));
}

void VerifyStream::OnWriteDone(bool ok) {
  const MutexLock lock(mutex_);
  is_writing_ = false;
  is_cancelled_ = is_cancelled_ || !ok;
  changed_.NotifyAll();
}

void VerifyStream::OnCancel() {
  const MutexLock lock(mutex_);
  is_cancelled_ = true;
  changed_.NotifyAll();
}

}  // namespace cairn
