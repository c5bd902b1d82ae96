// SPDX-License-Identifier: Apache-2.0
#pragma once
// Byte amounts, written and read: 4_MiB in code, "4MiB" in a flag.
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

// Decimal digits, then nothing, "B", or one of Ki, Mi, Gi, Ti with or without "B". No sign, no
// fraction, no blanks; "K" and "KB" are refused, since half the world reads them as 1000. Errors:
// InvalidArgument (what is wrong; or more than 2^63 - 1 bytes).
absl::StatusOr<std::uint64_t> ParseBytes(std::string_view text);

// In the largest unit it fills: "4GiB" for a whole number, which ParseBytes reads back, else
// "1.5GiB".
std::string FormatBytes(std::uint64_t bytes);

}  // namespace cairn
