// SPDX-License-Identifier: Apache-2.0
#pragma once
// What moves blocks of one space to and from caches on devices, and mines what lies in them: made
// when it is first asked for, and kept. Private to client/c.

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/cpp/device.h"
#include "client/cpp/mine.h"
#include "kernels/runtime.h"

namespace cairn::c {

// Thread-safety: Thread-safe; one mover or miner runs at a time.
class DeviceMovers {
 public:
  // The CUDA device of that number, which stays until this goes. Errors as of With().
  absl::StatusOr<kernels::Runtime*> Open(int32_t device);
  // Runs `body` with the one of a slice and a CUDA device. Unimplemented: there are no kernels;
  // Unavailable: no such device. As DeviceMover::Make().
  absl::Status With(Space& space, int32_t device, const GroupSlice& slice,
                    absl::FunctionRef<absl::Status(DeviceMover& mover)> body);
  // The same with the miner of a device.
  absl::Status WithMiner(Space& space, int32_t device,
                         absl::FunctionRef<absl::Status(DeviceMiner& miner)> body);

 private:
  using Slot = std::tuple<int32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;

  absl::StatusOr<kernels::Runtime*> OpenLocked(int32_t device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::map<int32_t, std::unique_ptr<kernels::Runtime>> devices_ ABSL_GUARDED_BY(mutex_);
  std::map<Slot, std::unique_ptr<DeviceMover>> movers_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, std::unique_ptr<DeviceMiner>> miners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn::c
