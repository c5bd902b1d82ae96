// SPDX-License-Identifier: Apache-2.0
#pragma once
// What moves blocks of one space to and from caches on devices: made when it is first asked for,
// and kept. Private to client/c.

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/cpp/device.h"
#include "kernels/runtime.h"

namespace cairn::c {

// Thread-safety: Thread-safe; one mover runs at a time.
class DeviceMovers {
 public:
  // The CUDA device of that number, which stays until this goes. Errors as of With().
  absl::StatusOr<kernels::Runtime*> Open(int32_t device);
  // Runs `body` with the one of a slice and a CUDA device. Unimplemented: there are no kernels;
  // Unavailable: no such device. As DeviceMover::Make().
  absl::Status With(Space& space, int32_t device, const GroupSlice& slice,
                    absl::FunctionRef<absl::Status(DeviceMover& mover)> body);

 private:
  using Slot = std::tuple<int32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;

  absl::StatusOr<kernels::Runtime*> OpenLocked(int32_t device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::map<int32_t, std::unique_ptr<kernels::Runtime>> devices_ ABSL_GUARDED_BY(mutex_);
  std::map<Slot, std::unique_ptr<DeviceMover>> movers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn::c
