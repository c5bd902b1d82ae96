// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of a device, and what the host has of it: tests read and write the host's, and exchange
// both before and after kernels run.
//
// Thread-safety: Owned by the main thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn::kernels {

// So many bytes, of which kernels may touch none before and none behind.
class DeviceBytes {
 public:
  DeviceBytes(size_t bytes, bool is_writable, size_t misalignment = 0);
  DeviceBytes(std::span<const std::byte> content, bool is_writable);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  // The host's.
  [[nodiscard]] std::byte* data() { return mirror_.data(); }
  [[nodiscard]] size_t size() const { return mirror_.size(); }
  [[nodiscard]] std::span<std::byte> span() { return mirror_; }
  // Where kernels have them.
  [[nodiscard]] std::byte* address() { return address_; }

  // Lays so many bytes around those that are made from now on, to see what is written there. Of 0,
  // as at first, whoever checks each access sees more.
  static void SetGuard(size_t bytes);
  // Of all that live: gives the device what the host has.
  static void UploadAll();
  // And takes back what kernels may have written. What is wrong around them; empty: nothing.
  static std::string DownloadAll();

 private:
  [[nodiscard]] bool IsGuardIntact(const std::byte* guard) const;

  std::vector<std::byte> mirror_;
  bool is_writable_;
  size_t guard_bytes_;
  std::byte* allocated_;
  std::byte* address_;
};

// Where numbers cannot be: two bytes on.
template <typename T>
[[nodiscard]] T* TwoBytesOn(T* numbers) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(numbers) + 2);
}

}  // namespace cairn::kernels
