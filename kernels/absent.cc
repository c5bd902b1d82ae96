// SPDX-License-Identifier: Apache-2.0
// The backend of a build without device kernels.
#include "kernels/backend.h"
#include "kernels/runtime.h"

namespace cairn::kernels {

Availability Probe() {
  return {
      .name = "none", .is_available = false, .reason = "unavailable: built without device kernels"};
}

LaunchResult LoadKernels() { return LaunchResult::kUnavailable; }

LaunchResult LaunchDecode(const DecodePlan&, const std::byte*, uint32_t*, Stream) {
  return LaunchResult::kUnavailable;
}

LaunchResult LaunchEncode(const EncodePlan&, const std::byte*, TileResult*, uint32_t*, Stream) {
  return LaunchResult::kUnavailable;
}

LaunchResult LaunchAttend(const AttendPlan&, const std::byte*, std::byte*, uint32_t*, Stream) {
  return LaunchResult::kUnavailable;
}

LaunchResult LaunchMine(const MinePlan&, const std::byte*, std::byte*, uint32_t*, Stream) {
  return LaunchResult::kUnavailable;
}

LaunchResult LaunchMinePass(const MinePassPlan&, const std::byte*, std::byte*, uint32_t*, Stream) {
  return LaunchResult::kUnavailable;
}

std::string_view LastDeviceError() { return {}; }

std::unique_ptr<Runtime> OpenCudaRuntime(int /*device*/) { return nullptr; }

}  // namespace cairn::kernels
