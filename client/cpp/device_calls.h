// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tracks one owner's work on a device stream: its failures and its completion. Private to
// client/cpp.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/runtime.h"

namespace cairn {

// Errors: InvalidArgument if `stream` is null.
absl::Status CheckStream(kernels::Stream stream);

// Returns the time left, for a call of the space, where zero would mean its default. Errors:
// DeadlineExceeded if none is left.
absl::StatusOr<absl::Duration> TimeLeft(absl::Time deadline);

// Tracks one owner's calls. After the first failure the device counts as lost: the failure is
// logged once, and all later calls return Unavailable. It queries the stream only while work of the
// owner may be on it, so that the stream may be closed once that work is known to be complete. The
// device must outlive it.
//
// Thread-safety: Thread-compatible.
class DeviceCalls {
 public:
  explicit DeviceCalls(kernels::Runtime& device) : device_(device) {}
  // Waits until the work on the stream is complete or the device has failed, however long that
  // takes: the memory that the work uses is freed next.
  ~DeviceCalls();
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  kernels::Runtime& device() { return device_; }
  bool is_lost() const { return is_lost_; }
  // Errors: Unavailable if the device is lost (says why).
  absl::Status Check() const;
  // Sets the stream of later calls. REQUIRES: the work on the previous stream is complete.
  void Use(kernels::Stream stream) { stream_ = stream; }
  kernels::Stream stream() const { return stream_; }
  // Records that a call put work on the stream and returned `result`; returns Check().
  absl::Status Took(kernels::LaunchResult result);
  // Tells why memory of the device, or of the host for it, could not be had. Errors:
  // ResourceExhausted if there is no room ("`user` take 5 bytes of …"), else those of Check().
  absl::Status NoRoom(std::string_view user, uint64_t bytes);
  // Returns whether all work on the stream is complete.
  absl::StatusOr<bool> IsOver();
  // Waits until it is. Errors: DeadlineExceeded.
  absl::Status Await(absl::Time deadline);

 private:
  absl::Status Note(kernels::LaunchResult result);

  kernels::Runtime& device_;
  kernels::Stream stream_ = nullptr;
  bool is_pending_ = false;  // work of the owner may be on the stream
  bool is_lost_ = false;
  std::string_view why_;  // static storage
};

}  // namespace cairn
