// SPDX-License-Identifier: Apache-2.0
#pragma once
// Global memory that kernels may touch.
//
// Thread-safety: as Fiber.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.h"

namespace cairn::kernels::emulated {

class GlobalMemory {
 public:
  void Add(const uint8_t* begin, size_t bytes, bool is_writable);
  void Remove(const uint8_t* begin);
  // From here on a launch has stored nothing.
  void BeginLaunch() { ++launch_; }
  // Notes an access. Returns what is wrong with the bytes, null where nothing is. Static storage.
  const char* Touch(const void* at, size_t bytes, Access access);

 private:
  struct Extent {
    const uint8_t* begin;
    const uint8_t* end;
    // Of each word, the number of the last launch that stored to it. Null: none may.
    std::unique_ptr<uint32_t[]> stored_by;

    [[nodiscard]] size_t WordAt(const uint8_t* at) const;
  };

  std::vector<Extent> extents_;
  uint32_t launch_ = 0;
};

}  // namespace cairn::kernels::emulated
