// SPDX-License-Identifier: Apache-2.0
#include "client/c/device_movers.h"

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"

namespace cairn::c {
namespace {

absl::Status CheckKernels() {
  const kernels::Availability found = kernels::Probe();
  if (found.is_available) {
    return absl::OkStatus();
  }
  const std::string text =
      absl::StrCat("a CUDA device is asked for; kernels are ", ToAbsl(found.reason));
  return found.name == "none" ? absl::UnimplementedError(text) : absl::UnavailableError(text);
}

absl::StatusOr<std::unique_ptr<kernels::Runtime>> OpenDevice(int32_t device) {
  CAIRN_RETURN_IF_ERROR(CheckKernels());
  std::unique_ptr<kernels::Runtime> runtime = kernels::OpenCudaRuntime(device);
  if (runtime == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "device_number is ", device, ": no such device, or one older than compute capability 8.0"));
  }
  return runtime;
}

}  // namespace

absl::Status DeviceMovers::Check(int32_t device) { return OpenDevice(device).status(); }

absl::StatusOr<kernels::Runtime*> DeviceMovers::Open(int32_t device) {
  const MutexLock lock(mutex_);
  return OpenLocked(device);
}

absl::StatusOr<kernels::Runtime*> DeviceMovers::OpenLocked(int32_t device) {
  std::unique_ptr<kernels::Runtime>& runtime = devices_[device];
  if (runtime == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(runtime, OpenDevice(device));
  }
  return runtime.get();
}

absl::Status DeviceMovers::Begin(const Call& call, Slot** slot, kernels::Runtime** runtime) {
  const GroupSlice& slice = call.slice;
  const MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(*runtime, OpenLocked(call.device));
  Slot& wanted = slots_[{call.device, call.work, slice.group, slice.layer_first, slice.layer_count,
                         slice.head_first, slice.head_count}];
  while (wanted.is_busy || busy_streams_.contains(call.stream)) {  // terminates at the deadline
    if (!ended_.WaitUntil(mutex_, call.deadline)) {
      return absl::DeadlineExceededError("other calls used the device until the deadline");
    }
  }
  wanted.is_busy = true;
  busy_streams_.insert(call.stream);
  *slot = &wanted;  // entries of a map do not move
  return absl::OkStatus();
}

void DeviceMovers::End(const Call& call, Slot& slot) {
  const MutexLock lock(mutex_);
  slot.is_busy = false;
  busy_streams_.erase(call.stream);
  ended_.NotifyAll();
}

absl::Status DeviceMovers::With(Space& space, const Call& call,
                                absl::FunctionRef<absl::Status(DeviceMover& mover)> body) {
  Slot* slot = nullptr;
  kernels::Runtime* runtime = nullptr;
  CAIRN_RETURN_IF_ERROR(Begin(call, &slot, &runtime));
  const auto end = absl::MakeCleanup([&] { End(call, *slot); });
  if (slot->mover == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(slot->mover, DeviceMover::Make(space, *runtime, call.slice));
  }
  if (slot->mover->is_lost()) {
    return absl::UnavailableError(absl::StrCat("the device is lost: ", ToAbsl(runtime->name())));
  }
  return body(*slot->mover);
}

absl::Status DeviceMovers::WithMiner(Space& space, const Call& call,
                                     absl::FunctionRef<absl::Status(DeviceMiner& miner)> body) {
  Slot* slot = nullptr;
  kernels::Runtime* runtime = nullptr;
  CAIRN_RETURN_IF_ERROR(Begin(call, &slot, &runtime));
  const auto end = absl::MakeCleanup([&] { End(call, *slot); });
  if (slot->miner == nullptr) {
    slot->miner = DeviceMiner::Make(space, *runtime);
  }
  return body(*slot->miner);
}

}  // namespace cairn::c
