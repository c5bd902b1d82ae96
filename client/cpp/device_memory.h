// SPDX-License-Identifier: Apache-2.0
#pragma once
// Owns memory of a device. Private to client/cpp.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "kernels/runtime.h"

namespace cairn {

// Alignment of allocations on a device.
inline constexpr uint64_t kDeviceAlignment = 256;
constexpr uint64_t RoundUpTo(uint64_t bytes, uint64_t alignment = kDeviceAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Pause between two polls of a stream.
inline constexpr absl::Duration kPollPause = absl::Microseconds(20);

// Memory of a device, or host memory registered with it. The device must outlive it.
// Thread-safety: Thread-compatible.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(kernels::Runtime& device, bool is_host, size_t bytes)
      : device_(&device),
        is_host_(is_host),
        data_(is_host ? device.AllocateHost(bytes) : device.AllocateDevice(bytes)) {}
  ~DeviceMemory() { Free(); }
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    Free();
    device_ = other.device_;
    is_host_ = other.is_host_;
    data_ = std::exchange(other.data_, nullptr);
    return *this;
  }

  // Returns null if the allocation failed.
  std::byte* data() const { return data_; }

 private:
  void Free() {
    if (data_ != nullptr) {
      is_host_ ? device_->FreeHost(data_) : device_->FreeDevice(data_);
    }
  }

  kernels::Runtime* device_ = nullptr;
  bool is_host_ = false;
  std::byte* data_ = nullptr;
};

}  // namespace cairn
