// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loads and stores little-endian integers at any alignment, and rounds sizes up to the alignment of
// sections.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cairn::codecs {

static_assert(std::endian::native == std::endian::little, "images are little-endian");

inline constexpr size_t kSectionAlignment = 16;

template <typename Integer>
[[nodiscard]] inline Integer Load(const void* source) {
  Integer value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

template <typename Integer>
inline void Store(void* target, Integer value) {
  std::memcpy(target, &value, sizeof(value));
}

[[nodiscard]] constexpr uint64_t AlignSection(uint64_t bytes) {
  return (bytes + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

[[nodiscard]] inline const uint8_t* U8(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}
[[nodiscard]] inline uint8_t* U8(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }

[[nodiscard]] inline bool IsZero(const uint8_t* bytes, size_t count) {
  uint8_t seen = 0;
  for (size_t i = 0; i < count; ++i) seen |= bytes[i];
  return seen == 0;
}
[[nodiscard]] inline bool IsZero(const std::byte* bytes, size_t count) {
  return IsZero(U8(bytes), count);
}

}  // namespace cairn::codecs
