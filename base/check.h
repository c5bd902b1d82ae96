// SPDX-License-Identifier: Apache-2.0
#pragma once
// Assertions for conditions that cannot occur. A failure that can occur in production is an
// absl::Status instead.
//
//   CAIRN_CHECK(pins > 0);                          always on
//   CAIRN_CHECK(pins > 0, absl::StrCat("key ", k)); the message is built only on failure
//   CAIRN_DCHECK(index < count);                    for hot loops: off in the release preset
//
// A failed check prints file, line, condition and message to stderr and aborts.
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace cairn::internal {

[[noreturn, gnu::cold, gnu::noinline]] inline void CheckFailed(const char* file, int line,
                                                               const char* condition,
                                                               std::string_view message = {}) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%.*s\n", file, line, condition,
               message.empty() ? "" : ": ", static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace cairn::internal

#define CAIRN_CHECK(condition, ...)                                                              \
  do {                                                                                           \
    if (!(condition)) [[unlikely]] {                                                             \
      ::cairn::internal::CheckFailed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__); \
    }                                                                                            \
  } while (false)

#ifdef NDEBUG
#define CAIRN_DCHECK(condition, ...)                     \
  do {                                                   \
    if (false) {                                         \
      CAIRN_CHECK(condition __VA_OPT__(, ) __VA_ARGS__); \
    }                                                    \
  } while (false)
#else
#define CAIRN_DCHECK(condition, ...) CAIRN_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
