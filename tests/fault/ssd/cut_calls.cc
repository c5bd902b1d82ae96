// SPDX-License-Identifier: Apache-2.0
// The calls of a process that write to files and sync them, with a record of each (cut_log.h). They
// stand in the place of the C library's, also for the libraries that the process has loaded.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fault/ssd/cut_log.h"

namespace {

using cairn::CutRecord;

struct Setting {
  std::string root;
  int log = -1;
};

const Setting& TheSetting() {
  static const Setting* setting = [] {
    auto* made = new Setting;
    const char* root = std::getenv(cairn::kCutRootVariable);
    const char* log = std::getenv(cairn::kCutLogVariable);
    if (root != nullptr && log != nullptr) {
      made->root = root;
      made->log = ::open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
    return made;
  }();
  return *setting;
}

// Empty: a file whose writes are not recorded.
std::string PathOf(int fd) {
  if (TheSetting().log < 0) {
    return {};
  }
  std::array<char, PATH_MAX> path;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t bytes = ::readlink(link.c_str(), path.data(), path.size());
  const std::string_view found(path.data(), static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  return found.starts_with(TheSetting().root) ? std::string(found) : std::string();
}

// One call, so that records of several threads do not mix.
void Append(CutRecord record, const std::string& path, const std::vector<char>& old) {
  record.path_bytes = static_cast<uint32_t>(path.size());
  record.old_bytes = old.size();
  const std::array<iovec, 3> parts = {{{&record, sizeof(record)},
                                       {const_cast<char*>(path.data()), path.size()},
                                       {const_cast<char*>(old.data()), old.size()}}};
  if (::syscall(SYS_writev, TheSetting().log, parts.data(), parts.size()) < 0) {
    std::abort();
  }
}

void RecordWrite(int fd, uint64_t offset, uint64_t bytes) {
  const std::string path = PathOf(fd);
  struct stat facts {};
  if (path.empty() || ::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return;
  }
  const auto file_bytes = static_cast<uint64_t>(facts.st_size);
  const uint64_t end = std::min(offset + bytes, file_bytes);
  std::vector<char> old(end > offset ? end - offset : 0);
  if (!old.empty()) {
    // By a descriptor of its own: the file's may be for writing alone, or want aligned memory.
    const auto own = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDONLY));
    const auto got = ::syscall(SYS_pread64, own, old.data(), old.size(), offset);
    ::syscall(SYS_close, own);
    if (got != static_cast<ssize_t>(old.size())) {
      std::abort();
    }
  }
  Append({.kind = CutRecord::kWrite, .file_bytes = file_bytes, .offset = offset, .bytes = bytes},
         path, old);
}

struct Failing {
  std::string path;
  uint64_t each = 0;
  std::atomic<uint64_t> random{0};
};
std::atomic<Failing*> failing{nullptr};

bool FailsNow(const std::string& path) {
  Failing* const now = failing;
  if (now == nullptr || path.find(now->path) == std::string::npos) {
    return false;
  }
  // A linear congruential generator, whose upper bits are the better ones.
  const uint64_t random = now->random.fetch_add(1) * 6364136223846793005 + 1442695040888963407;
  return (random >> 33) % now->each == 0;
}

int Sync(int fd, int64_t call) {
  static std::atomic<uint64_t> numbers{0};
  const std::string path = PathOf(fd);
  if (!path.empty() && FailsNow(path)) {
    Append({.kind = CutRecord::kSyncFailed}, path, {});
    errno = EIO;
    return -1;
  }
  const uint64_t number = ++numbers;
  struct stat facts {};
  if (!path.empty() && ::fstat(fd, &facts) == 0) {
    Append({.kind = CutRecord::kSyncBegins,
            .sync = number,
            .file_bytes = static_cast<uint64_t>(facts.st_size)},
           path, {});
  }
  const auto result = static_cast<int>(::syscall(call, fd));
  if (!path.empty() && result == 0) {
    Append({.kind = CutRecord::kSyncEnds, .sync = number}, path, {});
  }
  return result;
}

}  // namespace

void cairn::FailSyncs(const std::string& path, uint64_t each, uint64_t seed) {
  auto* made = new Failing;  // never destroyed: the process calls to its end
  made->path = path;
  made->each = each;
  made->random = seed;
  failing = made;
}

extern "C" {
#define CAIRN_INSTEAD [[gnu::visibility("default")]]

CAIRN_INSTEAD ssize_t write(int fd, const void* from, size_t bytes) {
  // Files of RocksDB that it appends to. The place matters where they are records: it is the end.
  struct stat facts {};
  if (TheSetting().log >= 0 && ::fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode)) {
    RecordWrite(fd, static_cast<uint64_t>(::lseek(fd, 0, SEEK_CUR)), bytes);
  }
  return ::syscall(SYS_write, fd, from, bytes);
}

CAIRN_INSTEAD ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
  RecordWrite(fd, static_cast<uint64_t>(offset), bytes);
  return ::syscall(SYS_pwrite64, fd, from, bytes, offset);
}
CAIRN_INSTEAD ssize_t pwrite64(int fd, const void* from, size_t bytes, off64_t offset) {
  return pwrite(fd, from, bytes, offset);
}

CAIRN_INSTEAD ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  uint64_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    bytes += parts[i].iov_len;
  }
  RecordWrite(fd, static_cast<uint64_t>(offset), bytes);
  return ::syscall(SYS_pwritev, fd, parts, count, offset, 0);
}
CAIRN_INSTEAD ssize_t pwritev64(int fd, const iovec* parts, int count, off64_t offset) {
  return pwritev(fd, parts, count, offset);
}

CAIRN_INSTEAD int fdatasync(int fd) { return Sync(fd, SYS_fdatasync); }
CAIRN_INSTEAD int fsync(int fd) { return Sync(fd, SYS_fsync); }

#undef CAIRN_INSTEAD
}  // extern "C"
