// SPDX-License-Identifier: Apache-2.0
#include "base/direct_io.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace cairn {
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

}  // namespace cairn
