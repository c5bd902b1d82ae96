// SPDX-License-Identifier: Apache-2.0
#pragma once
// Unpredictable bytes from the kernel, for tickets and lease tokens.
//
//   const auto ticket = RandomBytes<16>();
//
// Thread-safety: Thread-safe.
#include <array>
#include <cstddef>
#include <span>

namespace cairn {

// Fills `target` with random bytes. Waits until the kernel's generator is seeded. After that it
// cannot fail (CAIRN_CHECKed).
void FillRandom(std::span<std::byte> target);

template <std::size_t kBytes>
std::array<std::byte, kBytes> RandomBytes() {
  std::array<std::byte, kBytes> bytes;
  FillRandom(bytes);
  return bytes;
}

}  // namespace cairn
