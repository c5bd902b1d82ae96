// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cairn {

void Fd::Reset(int fd) {
  if (fd_ >= 0) {
    // Linux frees the descriptor even when close() reports an error, so there is nothing to repeat.
    ::close(fd_);
  }
  fd_ = fd;
}

absl::StatusOr<std::string> ReadFile(const std::string& path, std::size_t bytes_max) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_valid()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("open ", path));
  }
  constexpr std::size_t kStep = std::size_t{64} << 10;
  std::string text;
  while (true) {  // ends: each turn adds bytes up to bytes_max + 1, or returns
    const std::size_t old = text.size();
    text.resize(old + std::min(kStep, bytes_max + 1 - old));
    const ssize_t got = ::read(file.get(), text.data() + old, text.size() - old);
    if (got < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat("read ", path));
    }
    text.resize(old + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) {
      return text;
    }
    if (text.size() > bytes_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, " is larger than the limit of ", bytes_max, " bytes"));
    }
  }
}

}  // namespace cairn
