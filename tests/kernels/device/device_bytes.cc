// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/device/device_bytes.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "tests/kernels/device/device.h"

namespace cairn::kernels {
namespace {

constexpr std::byte kGuard{0xA9};

size_t guard_bytes = 0;

std::set<DeviceBytes*>& Living() {
  static std::set<DeviceBytes*> living;
  return living;
}

}  // namespace

DeviceBytes::DeviceBytes(size_t bytes, bool is_writable, size_t misalignment)
    : mirror_(bytes), is_writable_(is_writable), guard_bytes_(guard_bytes) {
  allocated_ = device::Allocate(bytes + 2 * guard_bytes, is_writable, misalignment);
  CAIRN_CHECK(allocated_ != nullptr, "the device gives no memory");
  address_ = allocated_ + guard_bytes;
  const std::vector<std::byte> guard(guard_bytes, kGuard);
  device::CopyIn(allocated_, guard.data(), guard_bytes);
  device::CopyIn(address_ + bytes, guard.data(), guard_bytes);
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

void DeviceBytes::SetGuard(size_t bytes) { guard_bytes = bytes; }

void DeviceBytes::UploadAll() {
  for (DeviceBytes* bytes : Living()) {
    device::CopyIn(bytes->address_, bytes->data(), bytes->size());
  }
}

bool DeviceBytes::IsGuardIntact(const std::byte* guard) const {
  std::vector<std::byte> found(guard_bytes_);
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
