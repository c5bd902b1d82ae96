// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one owner has put on a stream of a device: whether it went well, and whether it is over.
// Private to client/cpp.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/runtime.h"

namespace cairn {

// InvalidArgument: it is null.
absl::Status CheckStream(kernels::Stream stream);

// For a call of the space's, to which zero were its default. DeadlineExceeded: none.
absl::StatusOr<absl::Duration> TimeLeft(absl::Time deadline);

// The calls of one owner. After the first that failed the device is lost: it is logged once, and
// all answers are Unavailable from then on. A stream is looked at only while something of the
// owner's may be on it, so that it may be closed once a call has seen the end of that. The device
// must outlive it.
//
// Thread-safety: Thread-compatible.
class DeviceCalls {
 public:
  explicit DeviceCalls(kernels::Runtime& device) : device_(device) {}
  // Waits until what is on the stream is over or the device has failed, however long that takes:
  // memory that it refers to goes next.
  ~DeviceCalls();
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  kernels::Runtime& device() { return device_; }
  bool is_lost() const { return is_lost_; }
  // Unavailable: the device is lost, and why.
  absl::Status Check() const;
  // The stream of the calls that follow. REQUIRES: what is on another is over.
  void Use(kernels::Stream stream) { stream_ = stream; }
  kernels::Stream stream() const { return stream_; }
  // Check(), after a call that put something on the stream and returned `result`.
  absl::Status Took(kernels::LaunchResult result);
  // After memory of the device, or of the host for it, was asked for in vain. ResourceExhausted:
  // there is no room: "`user` take 5 bytes of …"; else Check().
  absl::Status NoRoom(std::string_view user, uint64_t bytes);
  // Whether all that was put on the stream is over.
  absl::StatusOr<bool> IsOver();
  // Until it is over. DeadlineExceeded: it was not by then.
  absl::Status Await(absl::Time deadline);

 private:
  absl::Status Note(kernels::LaunchResult result);

  kernels::Runtime& device_;
  kernels::Stream stream_ = nullptr;
  bool is_pending_ = false;  // something of the owner's may be on the stream
  bool is_lost_ = false;
  std::string_view why_;  // static storage
};

}  // namespace cairn
