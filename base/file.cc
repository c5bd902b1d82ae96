// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"

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

// --- Direct I/O ----------------------------------------------------------------------------------

namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

absl::Status CheckDirectIo(const std::string& folder) {
  struct statfs file_system = {};
  if (::statfs(folder.c_str(), &file_system) != 0) {
    return absl::ErrnoToStatus(errno, folder);
  }
  if (file_system.f_type == TMPFS_MAGIC || file_system.f_type == RAMFS_MAGIC) {
    return absl::InvalidArgumentError("its file system is memory (tmpfs): name a folder on a disk");
  }
  if (file_system.f_type == OVERLAYFS_SUPER_MAGIC) {
    return absl::InvalidArgumentError(
        "its file system is a container's own (overlayfs): mount a disk there");
  }
  const std::string path = absl::StrCat(folder, "/probe");
  const Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_NOFOLLOW | O_CLOEXEC, 0600));
  const int open_error = errno;
  alignas(kPageBytes) static constexpr std::array<std::byte, kPageBytes> kPage{};
  const bool is_written = file.is_valid() && ::pwrite(file.get(), kPage.data(), kPage.size(), 0) ==
                                                 static_cast<ssize_t>(kPage.size());
  const int error = file.is_valid() ? errno : open_error;
  ::unlink(path.c_str());
  if (is_written) {
    return absl::OkStatus();
  }
  if (error == EINVAL || error == EOPNOTSUPP) {
    return absl::InvalidArgumentError(
        "its file system does not support O_DIRECT: name a folder on a disk");
  }
  return absl::ErrnoToStatus(error, path);
}

// --- Shared memory -------------------------------------------------------------------------------

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
