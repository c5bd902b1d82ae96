// SPDX-License-Identifier: Apache-2.0
// libcairn.so as it is on a machine with a device, for tests of what C and Python say to one: the
// device is emulated, and takes the place of kernels/'s. Device 0 is there and no other. Each space
// opens it for itself; what is wrong with it is so for all.

#include <memory>

#include "client/c/cairn.h"
#include "kernels/backend.h"
#include "kernels/runtime.h"
#include "tests/kernels/device/device.h"
#include "tests/kernels/device/emulated_device.h"

namespace cairn::kernels {
namespace {

std::shared_ptr<EmulatedDevice::Faults> TheFaults() {
  static const auto faults = std::make_shared<EmulatedDevice::Faults>();
  return faults;
}

}  // namespace

Availability Probe() { return {.name = "emulated", .is_available = true, .reason = "available"}; }

std::unique_ptr<Runtime> OpenCudaRuntime(int device) {
  return device == 0 ? std::make_unique<EmulatedDevice>(TheFaults()) : nullptr;
}

LaunchResult LaunchDecode(const DecodePlan&, const std::byte*, uint32_t*, Stream) {
  return LaunchResult::kUnavailable;
}
LaunchResult LaunchEncode(const EncodePlan&, const std::byte*, TileResult*, uint32_t*, Stream) {
  return LaunchResult::kUnavailable;
}
LaunchResult LaunchAttend(const AttendPlan&, const std::byte*, std::byte*, uint32_t*, Stream) {
  return LaunchResult::kUnavailable;
}
std::string_view LastDeviceError() { return {}; }

}  // namespace cairn::kernels

extern "C" {
// Memory of the device, which kernels may touch and no other.
CAIRN_API void* cairn_emulated_allocate(size_t bytes) {
  return cairn::EmulatedDevice::Allocate(bytes);
}
CAIRN_API void cairn_emulated_free(void* memory) {
  cairn::EmulatedDevice::Free(static_cast<std::byte*>(memory));
}
// Whether all that is asked of it fails, and whether nothing on its streams comes to its end.
CAIRN_API void cairn_emulated_fail(int is_dead, int hangs) {
  cairn::kernels::TheFaults()->is_dead = is_dead != 0;
  cairn::kernels::TheFaults()->hangs = hangs != 0;
}
}
