// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/device_calls.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "client/cpp/device_memory.h"

namespace cairn {

using kernels::LaunchResult;

absl::Status CheckStream(kernels::Stream stream) {
  return stream == nullptr
             ? absl::InvalidArgumentError("stream is null: the default stream waits for all others")
             : absl::OkStatus();
}

absl::StatusOr<absl::Duration> TimeLeft(absl::Time deadline) {
  const absl::Duration left = deadline - MonotonicNow();
  return left > absl::ZeroDuration()
             ? absl::StatusOr<absl::Duration>(left)
             : absl::DeadlineExceededError("no time left to ask the daemon");
}

absl::Status DeviceCalls::Check() const {
  if (!is_lost_) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("the device is lost: ", ToAbsl(device_.name()),
                                             why_.empty() ? "" : ", ", ToAbsl(why_)));
}

DeviceCalls::~DeviceCalls() {
  bool is_over = !is_pending_;
  while (!is_over && device_.Poll(stream_, &is_over) == LaunchResult::kOk && !is_over) {
    absl::SleepFor(kPollPause);  // terminates: the device completes its work, or fails
  }
}

absl::Status DeviceCalls::Note(LaunchResult result) {
  if (result != LaunchResult::kOk && !is_lost_) {
    why_ = kernels::LastDeviceError();
    LogError("client", "device failed: not used any more",
             {{"device", device_.name()}, {"error", why_}});
    is_lost_ = true;
  }
  return Check();
}

absl::Status DeviceCalls::Took(LaunchResult result) {
  is_pending_ = true;
  return Note(result);
}

absl::Status DeviceCalls::NoRoom(std::string_view user, uint64_t bytes) {
  if (device_.is_lost()) {
    return Note(LaunchResult::kDeviceError);
  }
  return absl::ResourceExhaustedError(absl::StrCat(ToAbsl(user), " take ", bytes, " bytes of ",
                                                   ToAbsl(device_.name()),
                                                   " or of the host, which has no room for them"));
}

absl::StatusOr<bool> DeviceCalls::IsOver() {
  CAIRN_RETURN_IF_ERROR(Check());
  bool is_over = !is_pending_;
  if (!is_over) {
    CAIRN_RETURN_IF_ERROR(Note(device_.Poll(stream_, &is_over)));
  }
  is_pending_ = !is_over;
  return is_over;
}

absl::Status DeviceCalls::Await(absl::Time deadline) {
  while (true) {  // terminates at the deadline
    CAIRN_ASSIGN_OR_RETURN(const bool is_over, IsOver());
    if (is_over) {
      return absl::OkStatus();
    }
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError("the device was not done in time");
    }
    absl::SleepFor(kPollPause);
  }
}

}  // namespace cairn
