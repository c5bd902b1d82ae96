// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of the host through which images pass on their way between a device and the store. Where
// it can be it is a data connection's own, so that they leave from it and land in it without a copy
// more; it is registered with the device in any case. Private to client/cpp.
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

  // Takes memory where it has none, or has some whose connection has ended: what `lend` gives, or,
  // where that has no room or the device refuses it, the device driver's. Errors: those of `lend`
  // else; those of DeviceCalls::NoRoom() where the driver has no room either.
  // REQUIRES: the device uses nothing of what it had.
  absl::Status Take(DeviceCalls& calls, size_t bytes,
                    absl::FunctionRef<absl::StatusOr<Buffer>()> lend);
  // Calls failed as they do when their connection ends: it may have taken pages of the memory out
  // of the daemon's reach, and so out of what is registered.
  void OnCallsFailed() { is_stale_ = lent_.has_value(); }

  // REQUIRES: Take() was OK.
  std::byte* data() const { return data_; }

 private:
  void GiveBack();

  kernels::Runtime* device_ = nullptr;
  std::optional<Buffer> lent_;  // none: the driver's
  std::byte* data_ = nullptr;   // null: none
  bool is_stale_ = false;
};

}  // namespace cairn
