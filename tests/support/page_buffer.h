// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory in whole pages, as transfers of a drive need it.
//
// Thread-safety: Thread-compatible.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>

#include "base/check.h"

namespace cairn {

class PageBuffer {
 public:
  static constexpr size_t kAlignment = 4096;

  // Zeros. Rounded up to whole pages.
  explicit PageBuffer(size_t bytes)
      : bytes_((bytes + kAlignment - 1) / kAlignment * kAlignment),
        memory_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes_))) {
    CAIRN_CHECK(memory_ != nullptr);
    std::fill_n(memory_.get(), bytes_, std::byte{});
  }
  // Random content.
  PageBuffer(size_t bytes, uint64_t seed) : PageBuffer(bytes) {
    std::mt19937_64 random(seed);
    for (std::byte& byte : all()) {
      byte = static_cast<std::byte>(random());
    }
  }

  std::span<std::byte> all() const { return {memory_.get(), bytes_}; }
  std::span<std::byte> part(size_t offset, size_t bytes) const {
    return all().subspan(offset, bytes);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  size_t bytes_;
  std::unique_ptr<std::byte[], Free> memory_;
};

}  // namespace cairn
