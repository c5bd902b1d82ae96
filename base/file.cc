// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cairn {
namespace {

absl::Status WriteAndSync(const std::string& path, std::span<const std::byte> bytes) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.is_valid()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("open ", path));
  }
  while (!bytes.empty()) {  // ends: each turn writes a byte at least, is interrupted, or returns
    const ssize_t put = ::write(file.get(), bytes.data(), bytes.size());
    if (put < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat("write ", path));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(put, 0)));
  }
  return ::fsync(file.get()) == 0 ? absl::OkStatus()
                                  : absl::ErrnoToStatus(errno, absl::StrCat("sync ", path));
}

}  // namespace

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

absl::Status SyncFolder(const std::string& path) {
  const Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_valid() || ::fsync(folder.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("sync ", path));
  }
  return absl::OkStatus();
}

absl::Status WriteFileDurably(const std::string& path, std::span<const std::byte> bytes) {
  const std::string made = absl::StrCat(path, ".new");
  if (absl::Status status = WriteAndSync(made, bytes); !status.ok()) {
    ::unlink(made.c_str());
    return status;
  }
  if (::rename(made.c_str(), path.c_str()) != 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("put in place ", path));
    ::unlink(made.c_str());
    return status;
  }
  const std::size_t slash = path.rfind('/');
  return SyncFolder(slash == std::string::npos ? "."
                                               : path.substr(0, std::max<std::size_t>(slash, 1)));
}

}  // namespace cairn
