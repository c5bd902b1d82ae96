// SPDX-License-Identifier: Apache-2.0
#include "tests/support/faulty_calls.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstdarg>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
namespace {

struct Faults {
  std::atomic<size_t> count{0};  // without it the calls cost nothing
  std::mutex mutex;
  std::vector<FaultyCalls::Fault> faults;
  uint64_t met = 0;
};

// Never destroyed: the process calls to its end.
Faults& TheFaults() {
  static auto* const faults = new Faults;
  return *faults;
}

// True, and errno: it fails.
bool Fails(FaultyCalls::Call call, std::string_view path) {
  Faults& all = TheFaults();
  const std::scoped_lock lock(all.mutex);
  for (FaultyCalls::Fault& fault : all.faults) {
    if (fault.call == call && fault.calls_max > 0 && path.find(fault.path) != path.npos) {
      --fault.calls_max;
      ++all.met;
      errno = fault.error;
      return true;
    }
  }
  return false;
}

bool Fails(FaultyCalls::Call call, int fd) {
  if (TheFaults().count.load(std::memory_order_relaxed) == 0) {
    return false;
  }
  std::array<char, PATH_MAX> path;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t bytes = ::readlink(link.c_str(), path.data(), path.size());
  return bytes > 0 && Fails(call, std::string_view(path.data(), static_cast<size_t>(bytes)));
}

// The system's call `number`, or its failure.
template <typename... Rest>
long Do(FaultyCalls::Call call, long number, int fd, Rest... rest) {
  return Fails(call, fd) ? -1 : ::syscall(number, fd, rest...);
}

int Open(const char* path, int flags, mode_t mode) {
  if (TheFaults().count.load(std::memory_order_relaxed) > 0 && Fails(FaultyCalls::kOpen, path)) {
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

}  // namespace

void FaultyCalls::Inject(Fault fault) {
  Faults& all = TheFaults();
  const std::scoped_lock lock(all.mutex);
  all.faults.push_back(std::move(fault));
  all.count = all.faults.size();
}

void FaultyCalls::Clear() {
  Faults& all = TheFaults();
  const std::scoped_lock lock(all.mutex);
  all.faults.clear();
  all.count = 0;
  all.met = 0;
}

uint64_t FaultyCalls::met() {
  const std::scoped_lock lock(TheFaults().mutex);
  return TheFaults().met;
}

}  // namespace cairn

extern "C" {
#define CAIRN_INSTEAD [[gnu::visibility("default")]]

CAIRN_INSTEAD int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);  // read in vain where there is none
  va_end(arguments);
  return cairn::Open(path, flags, mode);
}
CAIRN_INSTEAD int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return cairn::Open(path, flags | O_LARGEFILE, mode);
}

CAIRN_INSTEAD ssize_t read(int fd, void* to, size_t bytes) {
  return cairn::Do(cairn::FaultyCalls::kRead, SYS_read, fd, to, bytes);
}
CAIRN_INSTEAD ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  return cairn::Do(cairn::FaultyCalls::kRead, SYS_pread64, fd, to, bytes, offset);
}
CAIRN_INSTEAD ssize_t pread64(int fd, void* to, size_t bytes, off64_t offset) {
  return pread(fd, to, bytes, offset);
}
CAIRN_INSTEAD ssize_t preadv(int fd, const iovec* parts, int count, off_t offset) {
  return cairn::Do(cairn::FaultyCalls::kRead, SYS_preadv, fd, parts, count, offset, 0);
}
CAIRN_INSTEAD ssize_t preadv64(int fd, const iovec* parts, int count, off64_t offset) {
  return preadv(fd, parts, count, offset);
}

CAIRN_INSTEAD ssize_t write(int fd, const void* from, size_t bytes) {
  return cairn::Do(cairn::FaultyCalls::kWrite, SYS_write, fd, from, bytes);
}
CAIRN_INSTEAD ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
  return cairn::Do(cairn::FaultyCalls::kWrite, SYS_pwrite64, fd, from, bytes, offset);
}
CAIRN_INSTEAD ssize_t pwrite64(int fd, const void* from, size_t bytes, off64_t offset) {
  return pwrite(fd, from, bytes, offset);
}
CAIRN_INSTEAD ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  return cairn::Do(cairn::FaultyCalls::kWrite, SYS_pwritev, fd, parts, count, offset, 0);
}
CAIRN_INSTEAD ssize_t pwritev64(int fd, const iovec* parts, int count, off64_t offset) {
  return pwritev(fd, parts, count, offset);
}

CAIRN_INSTEAD int fdatasync(int fd) {
  return static_cast<int>(cairn::Do(cairn::FaultyCalls::kSync, SYS_fdatasync, fd));
}
CAIRN_INSTEAD int fsync(int fd) {
  return static_cast<int>(cairn::Do(cairn::FaultyCalls::kSync, SYS_fsync, fd));
}
CAIRN_INSTEAD int posix_fallocate(int fd, off_t offset, off_t bytes) {
  const long done = cairn::Do(cairn::FaultyCalls::kAllocate, SYS_fallocate, fd, 0, offset, bytes);
  return done == 0 ? 0 : errno;
}
CAIRN_INSTEAD int posix_fallocate64(int fd, off64_t offset, off64_t bytes) {
  return posix_fallocate(fd, offset, bytes);
}

#undef CAIRN_INSTEAD
}  // extern "C"
