// SPDX-License-Identifier: Apache-2.0
// Loaded into a daemon ahead of the C library: a drive that does not answer. While the file
// $CAIRN_TEST_HANG_FLAG exists, reads and writes at an offset of files below
// $CAIRN_TEST_HANG_FOLDER do not return.

#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

constexpr useconds_t kStepMicroseconds = 2000;

void WaitWhileHung(int fd) {
  static const char* const flag = std::getenv("CAIRN_TEST_HANG_FLAG");
  static const char* const folder = std::getenv("CAIRN_TEST_HANG_FOLDER");
  if (flag == nullptr || folder == nullptr || ::access(flag, F_OK) != 0) {
    return;
  }
  std::array<char, PATH_MAX> path;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t bytes = ::readlink(link.c_str(), path.data(), path.size());
  if (bytes <= 0 ||
      !std::string_view(path.data(), static_cast<size_t>(bytes)).starts_with(folder)) {
    return;
  }
  while (::access(flag, F_OK) == 0) {  // ends: the test removes it, or ends the process
    ::usleep(kStepMicroseconds);
  }
}

}  // namespace

extern "C" {
#define CAIRN_INSTEAD [[gnu::visibility("default")]]

CAIRN_INSTEAD ssize_t preadv(int fd, const iovec* parts, int count, off_t offset) {
  WaitWhileHung(fd);
  return ::syscall(SYS_preadv, fd, parts, count, offset, 0);
}
CAIRN_INSTEAD ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  WaitWhileHung(fd);
  return ::syscall(SYS_pwritev, fd, parts, count, offset, 0);
}
CAIRN_INSTEAD ssize_t preadv64(int fd, const iovec* parts, int count, off64_t offset) {
  return preadv(fd, parts, count, offset);
}
CAIRN_INSTEAD ssize_t pwritev64(int fd, const iovec* parts, int count, off64_t offset) {
  return pwritev(fd, parts, count, offset);
}

}  // extern "C"
