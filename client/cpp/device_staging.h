// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host memory through which images pass between a device and the store. If possible it is memory of
// a data connection, which saves a copy. In either case the memory is registered with the device.
// Private to client/cpp.
//
// Thread-safety: Thread-compatible.

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/buffer.h"
#include "client/cpp/device_calls.h"
#include "kernels/runtime.h"

namespace cairn {

class DeviceStaging {
 public:
  DeviceStaging() = default;
  ~DeviceStaging() { GiveBack(); }
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  // Takes memory if the object has none, or if the connection of its memory has ended. Calls `lend`
  // for memory. If `lend` has no room, or the device refuses that memory, takes host memory of the
  // device driver. Errors: other errors of `lend`; those of DeviceCalls::NoRoom() if the driver has
  // no room, too. REQUIRES: the device no longer uses the previous memory.
  absl::Status Take(DeviceCalls& calls, size_t bytes,
                    absl::FunctionRef<absl::StatusOr<Buffer>()> lend);
  // Must be called when calls have failed with an error that can mean the end of their connection.
  // Pages of the memory may then be detached from the daemon, and so from the range that is
  // registered with the device.
  void OnCallsFailed() { is_stale_ = lent_.has_value(); }

  // REQUIRES: Take() was OK.
  std::byte* data() const { return data_; }

 private:
  void GiveBack();

  kernels::Runtime* device_ = nullptr;
  std::optional<Buffer> lent_;  // nullopt: memory of the driver
  std::byte* data_ = nullptr;   // null: none
  bool is_stale_ = false;
};

}  // namespace cairn
