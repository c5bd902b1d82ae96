// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tracks the work that one owner puts on a device stream: whether the work fails, and when it
// completes. Private to client/cpp.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/runtime.h"

namespace cairn {

// Errors: InvalidArgument if `stream` is null.
absl::Status CheckStream(kernels::Stream stream);

// Returns the time left until `deadline`, for a call of the space. Never returns zero, which would
// mean the default. Errors: DeadlineExceeded if no time is left.
absl::StatusOr<absl::Duration> TimeLeft(absl::Time deadline);

// Tracks one owner's calls. After the first failure the device counts as lost: the failure is
// logged once, and all later calls return Unavailable. The object uses the stream only while it may
// have work of the owner. So the owner may close the stream after IsOver() or Await() has reported
// that the work is complete. The device must outlive the object.
//
// Thread-safety: Thread-compatible.
class DeviceCalls {
 public:
  explicit DeviceCalls(kernels::Runtime& device) : device_(device) {}
  // Waits until the work on the stream is complete or the device has failed, however long that
  // takes. The owner then frees the memory that the work uses.
  ~DeviceCalls();
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  kernels::Runtime& device() { return device_; }
  bool is_lost() const { return is_lost_; }
  // Errors: Unavailable if the device is lost (the message says why).
  absl::Status Check() const;
  // Sets the stream of later calls. REQUIRES: the work on the previous stream is complete.
  void Use(kernels::Stream stream) { stream_ = stream; }
  kernels::Stream stream() const { return stream_; }
  // Records the `result` of a call that put work on the stream. Returns Check().
  absl::Status Took(kernels::LaunchResult result);
  // Returns the error for a failed allocation of device memory, or of host memory for the device:
  // ResourceExhausted if there is no room ("`user` take 5 bytes of …"), otherwise the error of
  // Check().
  absl::Status NoRoom(std::string_view user, uint64_t bytes);
  // Returns whether all work on the stream is complete.
  absl::StatusOr<bool> IsOver();
  // Waits until all work on the stream is complete. Errors: DeadlineExceeded.
  absl::Status Await(absl::Time deadline);

 private:
  absl::Status Note(kernels::LaunchResult result);

  kernels::Runtime& device_;
  kernels::Stream stream_ = nullptr;
  bool is_pending_ = false;  // whether work of the owner may be on the stream
  bool is_lost_ = false;
  std::string_view why_;  // static storage
};

}  // namespace cairn
