// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/device/device_bytes.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "tests/kernels/device/device.h"

namespace cairn::kernels {
namespace {

constexpr std::byte kGuard{0xA9};

std::set<DeviceBytes*>& Living() {
  static std::set<DeviceBytes*> living;
  return living;
}

}  // namespace

DeviceBytes::DeviceBytes(size_t bytes, bool is_writable, size_t misalignment)
    : mirror_(bytes), is_writable_(is_writable) {
  const size_t guard = device::Find().guard_bytes;
  allocated_ = device::Allocate(bytes + 2 * guard, is_writable, misalignment);
  CAIRN_CHECK(allocated_ != nullptr, "the device gives no memory");
  address_ = allocated_ + guard;
  const std::vector<std::byte> guards(guard, kGuard);
  device::CopyIn(allocated_, guards.data(), guard);
  device::CopyIn(address_ + bytes, guards.data(), guard);
  Living().insert(this);
}

DeviceBytes::DeviceBytes(std::span<const std::byte> content, bool is_writable)
    : DeviceBytes(content.size(), is_writable) {
  std::ranges::copy(content, data());
}

DeviceBytes::~DeviceBytes() {
  Living().erase(this);
  device::Free(allocated_);
}

void DeviceBytes::UploadAll() {
  for (DeviceBytes* bytes : Living()) {
    device::CopyIn(bytes->address_, bytes->data(), bytes->size());
  }
}

bool DeviceBytes::IsGuardIntact(const std::byte* guard) const {
  std::vector<std::byte> found(device::Find().guard_bytes);
  device::CopyOut(found.data(), guard, found.size());
  return std::ranges::all_of(found, [](std::byte byte) { return byte == kGuard; });
}

std::string DeviceBytes::DownloadAll() {
  for (DeviceBytes* bytes : Living()) {
    if (!bytes->IsGuardIntact(bytes->allocated_) ||
        !bytes->IsGuardIntact(bytes->address_ + bytes->size())) {
      return "kernels wrote before or behind " + std::to_string(bytes->size()) + " bytes";
    }
    if (bytes->is_writable_) {
      device::CopyOut(bytes->data(), bytes->address_, bytes->size());
    }
  }
  return {};
}

}  // namespace cairn::kernels
