// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory for O_DIRECT: whole, aligned pages.
//
// Thread-safety: Thread-compatible.

#include <cstddef>
#include <memory>
#include <new>
#include <span>

#include "service/tier/ssd/io_engine.h"

namespace cairn {

class PageMemory {
 public:
  PageMemory() = default;
  // REQUIRES: whole pages. The contents are unspecified.
  explicit PageMemory(size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kPageBytes}))),
        bytes_(bytes) {}

  std::span<std::byte> bytes() const { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete (memory, std::align_val_t{kPageBytes});
    }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace cairn
