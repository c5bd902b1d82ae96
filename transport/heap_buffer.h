// SPDX-License-Identifier: Apache-2.0
#pragma once
// Buffers in ordinary memory, for transports without shared memory.

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "transport/transport.h"

namespace cairn::transport {

class HeapBuffer final : public Buffer {
 public:
  HeapBuffer(std::byte* data, size_t bytes) : data_(data, &std::free), bytes_(bytes) {}
  std::span<std::byte> bytes() override { return {data_.get(), bytes_}; }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
  size_t bytes_;
};

// Errors: ResourceExhausted.
inline absl::StatusOr<std::unique_ptr<Buffer>> AllocateHeapBuffer(size_t bytes) {
  constexpr size_t kAlignment = 4096;
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  void* const data = rounded < bytes ? nullptr : std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a buffer of ", bytes, " bytes"));
  }
  return std::make_unique<HeapBuffer>(static_cast<std::byte*>(data), bytes);
}

}  // namespace cairn::transport
