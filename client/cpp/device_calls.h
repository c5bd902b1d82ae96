// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether calls to a device went well. Private to client/cpp.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/runtime.h"

namespace cairn {

// The calls of one owner. After the first that failed the device is lost: it is logged once, and
// all answers are Unavailable from then on. The device must outlive it.
//
// Thread-safety: Thread-compatible.
class DeviceCalls {
 public:
  explicit DeviceCalls(kernels::Runtime& device) : device_(device) {}

  bool is_lost() const { return is_lost_; }
  // Unavailable: the device is lost.
  absl::Status Check() const;
  // The same, after a call that returned `result`.
  absl::Status Took(kernels::LaunchResult result);
  // Whether nothing is on the stream any more. Null: nothing is.
  absl::StatusOr<bool> IsOver(kernels::Stream stream);
  // Until it is over. DeadlineExceeded: it was not by then.
  absl::Status Await(kernels::Stream stream, absl::Time deadline);

 private:
  kernels::Runtime& device_;
  bool is_lost_ = false;
};

}  // namespace cairn
