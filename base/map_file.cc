// SPDX-License-Identifier: Apache-2.0
#include "base/map_file.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/units.h"

namespace cairn {
namespace {

constexpr uint64_t kAlignment = 2_MiB;
constexpr int kTriesMax = 100;  // others map memory where there was room a moment ago

}  // namespace

std::byte* MapFile(int fd, uint64_t bytes, int protection) {
  for (int i = 0; i < kTriesMax; ++i) {
    // Finds a free range, releases it and asks for it again. Keeping the range and mapping over it
    // with MAP_FIXED is unsafe: a MAP_FIXED that fails has already unmapped the range, another
    // thread may have mapped memory there since, and unmapping the range would unmap that memory.
    const uint64_t room = bytes + kAlignment;
    void* const found =
        mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) {
      return nullptr;
    }
    munmap(found, room);
    const uint64_t first = reinterpret_cast<uintptr_t>(found);
    void* const wanted =
        reinterpret_cast<void*>((first + kAlignment - 1) / kAlignment * kAlignment);
    void* const base = mmap(wanted, bytes, protection, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    if (base == wanted) {
      return static_cast<std::byte*>(base);
    }
    if (base != MAP_FAILED) {  // a kernel before 4.17, for which the address is a hint
      munmap(base, bytes);
      errno = EEXIST;
    }
    if (errno != EEXIST) {
      return nullptr;
    }
  }
  return nullptr;
}

Fd SealForReaders(int memfd) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (fcntl(memfd, F_ADD_SEALS, kSeals) != 0) {
    return Fd();
  }
  return Fd(open(absl::StrCat("/proc/self/fd/", memfd).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace cairn
