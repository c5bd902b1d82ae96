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

absl::Status DeviceCalls::Check() const {
  return is_lost_
             ? absl::UnavailableError(absl::StrCat("the device is lost: ", ToAbsl(device_.name())))
             : absl::OkStatus();
}

absl::Status DeviceCalls::Took(LaunchResult result) {
  if (result != LaunchResult::kOk && !is_lost_) {
    LogError("client", "the device failed and is not used any more",
             {{"device", device_.name()}, {"error", kernels::LastDeviceError()}});
    is_lost_ = true;
  }
  return Check();
}

absl::StatusOr<bool> DeviceCalls::IsOver(kernels::Stream stream) {
  CAIRN_RETURN_IF_ERROR(Check());
  bool is_over = stream == nullptr;
  if (!is_over) {
    CAIRN_RETURN_IF_ERROR(Took(device_.Poll(stream, &is_over)));
  }
  return is_over;
}

absl::Status DeviceCalls::Await(kernels::Stream stream, absl::Time deadline) {
  while (true) {  // ends at the deadline
    CAIRN_ASSIGN_OR_RETURN(const bool is_over, IsOver(stream));
    if (is_over) {
      return absl::OkStatus();
    }
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError("the device had not done its part in time");
    }
    absl::SleepFor(kPollPause);
  }
}

}  // namespace cairn
