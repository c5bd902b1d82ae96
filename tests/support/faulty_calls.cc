// SPDX-License-Identifier: Apache-2.0
#include "tests/support/faulty_calls.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

namespace cairn {
namespace {

constexpr size_t kFaultsMax = 16;
constexpr useconds_t kHangStepMicroseconds = 2000;

struct Slot {
  FaultyCalls::Call call = FaultyCalls::kWrite;
  int error = 0;
  uint64_t calls_max = 0;
  std::array<char, 256> path{};
};

// Shared by one or several processes. Memory of zeros is a valid initial state.
struct Faults {
  std::atomic<size_t> count;  // while it is 0, the calls only check it
  std::atomic<bool> is_locked;
  std::array<Slot, kFaultsMax> slots;
  uint64_t met;

  void lock() {
    while (is_locked.exchange(true, std::memory_order_acquire)) {  // pairs with unlock()
      ::sched_yield();
    }
  }
  void unlock() { is_locked.store(false, std::memory_order_release); }
};

// Maps the file. Uses system calls directly, because the functions below call this. Returns null on
// failure.
Faults* Map(const char* path, int flags) {
  const long fd = ::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd < 0 || ::ftruncate(static_cast<int>(fd), sizeof(Faults)) != 0) {
    return nullptr;
  }
  void* const memory =
      ::mmap(nullptr, sizeof(Faults), PROT_READ | PROT_WRITE, MAP_SHARED, static_cast<int>(fd), 0);
  ::close(static_cast<int>(fd));
  return memory == MAP_FAILED ? nullptr : static_cast<Faults*>(memory);
}

// Never destroyed, because the process makes calls until its end.
std::atomic<Faults*>& TheFaultsPointer() {
  static std::atomic<Faults*> faults = [] {
    const char* const path = std::getenv(FaultyCalls::kFileVariable);
    Faults* const shared = path == nullptr ? nullptr : Map(path, 0);
    return shared != nullptr ? shared : new Faults{};
  }();
  return faults;
}
Faults& TheFaults() { return *TheFaultsPointer().load(); }

// Returns the error of the call, or 0 for none. `is_first`: the call is counted.
int ErrorOf(FaultyCalls::Call call, std::string_view path, bool is_first) {
  Faults& all = TheFaults();
  const std::scoped_lock lock(all);
  for (size_t i = 0; i < all.count; ++i) {
    Slot& fault = all.slots[i];
    if (fault.call == call && fault.calls_max > 0 && path.find(fault.path.data()) != path.npos) {
      if (is_first) {
        --fault.calls_max;
        ++all.met;
      }
      return fault.error;
    }
  }
  return 0;
}

// Returns true and sets errno if the call must fail.
bool Fails(FaultyCalls::Call call, std::string_view path) {
  int error = ErrorOf(call, path, /*is_first=*/true);
  while (error == FaultyCalls::kHang) {  // until Clear()
    ::usleep(kHangStepMicroseconds);
    error = ErrorOf(call, path, /*is_first=*/false);
  }
  if (error != 0) {
    errno = error;
  }
  return error != 0;
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

// Makes the system call `number`, or fails.
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

void FaultyCalls::Share(const std::string& path) {
  Faults* const shared = Map(path.c_str(), O_CREAT);
  if (shared == nullptr) {
    std::abort();
  }
  TheFaultsPointer() = shared;
}

void FaultyCalls::Inject(const Fault& fault) {
  Faults& all = TheFaults();
  const std::scoped_lock lock(all);
  Slot& slot = all.slots.at(all.count);
  slot = {.call = fault.call, .error = fault.error, .calls_max = fault.calls_max};
  fault.path.copy(slot.path.data(), slot.path.size() - 1);
  ++all.count;
}

void FaultyCalls::Clear() {
  Faults& all = TheFaults();
  const std::scoped_lock lock(all);
  all.count = 0;
  all.met = 0;
}

uint64_t FaultyCalls::met() {
  Faults& all = TheFaults();
  const std::scoped_lock lock(all);
  return all.met;
}

}  // namespace cairn

extern "C" {
#define CAIRN_INSTEAD [[gnu::visibility("default")]]

CAIRN_INSTEAD int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);  // if there is no mode, the kernel ignores it
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
