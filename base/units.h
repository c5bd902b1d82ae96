// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sizes in bytes. Code writes 4_MiB; a flag has "4MiB".
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace cairn {

inline constexpr std::uint64_t kKiB = std::uint64_t{1} << 10;
inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kTiB = std::uint64_t{1} << 40;

consteval std::uint64_t operator""_KiB(unsigned long long count) { return count * kKiB; }
consteval std::uint64_t operator""_MiB(unsigned long long count) { return count * kMiB; }
consteval std::uint64_t operator""_GiB(unsigned long long count) { return count * kGiB; }

// Parses decimal digits followed by nothing, "B", or one of Ki, Mi, Gi, Ti with or without "B".
// Refuses signs, fractions and blanks. Also refuses "K" and "KB", which many readers take for 1000.
// Errors: InvalidArgument. The message says what is wrong, for example that the size is more than
// 2^63 - 1 bytes.
absl::StatusOr<std::uint64_t> ParseBytes(std::string_view text);

// Formats a size in the largest unit that is not larger than the size. If the number is whole, as
// in "4GiB", ParseBytes() can parse the result. Other results have a fraction, as in "1.5GiB".
std::string FormatBytes(std::uint64_t bytes);

}  // namespace cairn
