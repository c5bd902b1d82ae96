// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much a sanitizer slows a program down, for the limits of tests.

namespace cairn {

#if defined(__SANITIZE_THREAD__)
inline constexpr int kSlowdown = 20;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowdown = 5;
#else
inline constexpr int kSlowdown = 1;
#endif
inline constexpr bool kIsSanitized = kSlowdown > 1;

}  // namespace cairn
