// SPDX-License-Identifier: Apache-2.0
#include "transport/local/socket_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"

namespace cairn::transport {
namespace {

constexpr int kBacklog = 128;
// Anybody who may read a folder may hold its lock, so it is not waited for longer than another
// daemon's start.
constexpr absl::Duration kLockWait = absl::Seconds(2);

absl::Status ErrnoStatus(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat(what, " ", path, ": ", std::generic_category().message(errno)));
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path) || path.find('\0') != path.npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "socket path has ", path.size(), " bytes, expected 1 to ", sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Fd MakeSocket(int type) { return Fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

// 0, or errno.
int TryConnect(const Fd& socket, const sockaddr_un& address) {
  return connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0
             ? 0
             : errno;
}

// Held while the path is looked at and bound, so that of two daemons that start at once one wins.
absl::StatusOr<Fd> LockFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  Fd lock(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.is_valid()) {
    return ErrnoStatus("cannot use the folder", folder);
  }
  const absl::Time deadline = MonotonicNow() + kLockWait;
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {  // ends at the deadline
    if ((errno != EWOULDBLOCK && errno != EINTR) || MonotonicNow() >= deadline) {
      return ErrnoStatus("cannot lock the folder", folder);
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return lock;
}

// Removes a socket file that nobody listens at.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address, int type) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus("cannot look at", path);
  }
  if (!S_ISSOCK(file.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " exists and is no socket"));
  }
  const Fd probe = MakeSocket(type);
  // Anything but "refused" comes from somebody: a full backlog, or a listener of another socket
  // type.
  if (!probe.is_valid() || TryConnect(probe, address) != ECONNREFUSED) {
    return absl::FailedPreconditionError(absl::StrCat("somebody listens at ", path));
  }
  return unlink(path.c_str()) == 0 || errno == ENOENT ? absl::OkStatus()
                                                      : ErrnoStatus("cannot replace", path);
}

}  // namespace

absl::StatusOr<SocketFile> SocketFile::Listen(const std::string& path, int type, mode_t mode) {
  CAIRN_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  CAIRN_ASSIGN_OR_RETURN(const Fd lock, LockFolderOf(path));
  CAIRN_RETURN_IF_ERROR(RemoveStale(path, address, type));
  Fd socket = MakeSocket(type);
  // The file takes the mode of the socket, less the umask: never wider than it should be, not even
  // for a moment. chmod() then undoes a narrow umask.
  if (!socket.is_valid() || fchmod(socket.get(), mode) != 0 ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus("cannot bind", path);
  }
  SocketFile file(path, std::move(socket));
  struct stat made {};
  if (lstat(path.c_str(), &made) == 0) {
    file.device_ = made.st_dev;
    file.inode_ = made.st_ino;
  }
  if (chmod(path.c_str(), mode) != 0 || listen(file.get(), kBacklog) != 0) {
    return ErrnoStatus("cannot listen at", path);
  }
  return file;
}

SocketFile::~SocketFile() {
  struct stat file {};
  if (socket_.is_valid() && lstat(path_.c_str(), &file) == 0 && file.st_dev == device_ &&
      file.st_ino == inode_) {
    unlink(path_.c_str());
  }
}

absl::StatusOr<Fd> ConnectSocketFile(const std::string& path, absl::Time deadline) {
  CAIRN_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  Fd socket = MakeSocket(SOCK_SEQPACKET);
  if (!socket.is_valid()) {
    return ErrnoStatus("cannot make a socket for", path);
  }
  while (true) {  // ends at the deadline
    const int error = TryConnect(socket, address);
    if (error == 0) {
      return socket;
    }
    if (error != EAGAIN && error != EINTR) {
      return ErrnoStatus("cannot connect to", path);
    }
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(path, " accepts no connection"));
    }
    absl::SleepFor(absl::Milliseconds(1));  // its backlog is full
  }
}

}  // namespace cairn::transport
