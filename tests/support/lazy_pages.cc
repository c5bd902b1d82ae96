// SPDX-License-Identifier: Apache-2.0
// Loaded into a cairnd by LD_PRELOAD, it makes the daemon take its memory when it first uses it,
// and not at start. Zeroing 256 MiB takes more processor time than most tests need for all else.

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <cstddef>

namespace {

constexpr int kPopulateWrite = 23, kCollapse = 25;  // of Linux's MADV_…

}  // namespace

extern "C" __attribute__((visibility("default"))) int madvise(void* address, size_t bytes,
                                                              int advice) noexcept {
  static const bool is_daemon = strcmp(program_invocation_short_name, "cairnd") == 0;
  if (is_daemon && (advice == kPopulateWrite || advice == kCollapse)) return 0;
  using Madvise = int (*)(void*, size_t, int);
  static const auto next = reinterpret_cast<Madvise>(dlsym(RTLD_NEXT, "madvise"));
  return next(address, bytes, advice);
}
