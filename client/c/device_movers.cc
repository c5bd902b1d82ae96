// SPDX-License-Identifier: Apache-2.0
#include "client/c/device_movers.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"

namespace cairn::c {

absl::StatusOr<kernels::Runtime*> DeviceMovers::Open(int32_t device) {
  const MutexLock lock(mutex_);
  return OpenLocked(device);
}

absl::StatusOr<kernels::Runtime*> DeviceMovers::OpenLocked(int32_t device) {
  const kernels::Availability found = kernels::Probe();
  if (!found.is_available) {
    const std::string text =
        absl::StrCat("a CUDA device is asked for; kernels are ", ToAbsl(found.reason));
    return found.name == "none" ? absl::UnimplementedError(text) : absl::UnavailableError(text);
  }
  std::unique_ptr<kernels::Runtime>& runtime = devices_[device];
  if (runtime == nullptr) {
    runtime = kernels::OpenCudaRuntime(device);
  }
  if (runtime == nullptr) {
    return absl::UnavailableError(absl::StrCat("device_number is ", device, ": no such device"));
  }
  return runtime.get();
}

absl::Status DeviceMovers::With(Space& space, int32_t device, const GroupSlice& slice,
                                absl::FunctionRef<absl::Status(DeviceMover& mover)> body) {
  const MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(kernels::Runtime* const runtime, OpenLocked(device));
  std::unique_ptr<DeviceMover>& mover =
      movers_[{device, slice.group, slice.layer_first, slice.layer_count, slice.head_first,
               slice.head_count}];
  if (mover == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(mover, DeviceMover::Make(space, *runtime, slice));
  }
  return body(*mover);
}

absl::Status DeviceMovers::WithMiner(Space& space, int32_t device,
                                     absl::FunctionRef<absl::Status(DeviceMiner& miner)> body) {
  const MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(kernels::Runtime* const runtime, OpenLocked(device));
  std::unique_ptr<DeviceMiner>& miner = miners_[device];
  if (miner == nullptr) {
    miner = DeviceMiner::Make(space, *runtime);
  }
  return body(*miner);
}

}  // namespace cairn::c
