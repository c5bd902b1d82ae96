// SPDX-License-Identifier: Apache-2.0
#include "transport/local/socket_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/local/packet.h"

namespace cairn::transport {
namespace {

// The kernel's default maximum (net.core.somaxconn). gRPC connects without waiting, and reports a
// full backlog as if nobody were listening.
constexpr int kBacklog = 4096;
// Longer than another daemon holds the lock while it starts.
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

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Whether the path names the file that is open.
bool IsAt(const std::string& path, const Fd& file) {
  struct stat open {};
  struct stat there {};
  return file.is_valid() && fstat(file.get(), &open) == 0 && lstat(path.c_str(), &there) == 0 &&
         open.st_dev == there.st_dev && open.st_ino == there.st_ino;
}

// Held while the path is checked and bound, so that of two daemons that start at once one wins. It
// is a file of our own, because every reader of a folder can lock the folder.
class PathLock {
 public:
  static absl::StatusOr<PathLock> Take(const std::string& path) {
    PathLock lock(absl::StrCat(path, ".lock"));
    const absl::Time deadline = MonotonicNow() + kLockWait;
    while (true) {  // ends at the deadline
      CAIRN_RETURN_IF_ERROR(lock.Open());
      const int error = flock(lock.file_.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
      // Whoever had it before may have removed it meanwhile.
      if (error == 0 && IsAt(lock.path_, lock.file_)) {
        lock.is_held_ = true;
        return lock;
      }
      if ((error != 0 && error != EWOULDBLOCK && error != EINTR) || MonotonicNow() >= deadline) {
        return absl::UnavailableError(
            absl::StrCat("cannot lock ", lock.path_, ": ",
                         std::generic_category().message(error == 0 ? EWOULDBLOCK : error)));
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  PathLock(PathLock&& source) noexcept
      : path_(std::move(source.path_)),
        file_(std::move(source.file_)),
        is_held_(std::exchange(source.is_held_, false)) {}
  PathLock& operator=(PathLock&&) = delete;
  ~PathLock() {
    if (is_held_) {
      unlink(path_.c_str());
    }
  }

 private:
  explicit PathLock(std::string path) : path_(std::move(path)) {}

  absl::Status Open() {
    file_.Reset(open(path_.c_str(), O_RDONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
                     S_IRUSR | S_IWUSR));
    if (!file_.is_valid()) {
      return ErrnoStatus("cannot open the lock file", path_);
    }
    struct stat facts {};
    if (fstat(file_.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_uid != geteuid()) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, " is not a file of this user: remove it"));
    }
    return absl::OkStatus();
  }

  std::string path_;
  Fd file_;
  bool is_held_ = false;
};

// Makes the folder where it is missing. `warning`: what it should not allow, and does.
absl::Status PrepareFolderOf(const std::string& path, std::string* warning) {
  const std::string folder = FolderOf(path);
  if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return ErrnoStatus("cannot make the folder", folder);
  }
  FolderRisk risk = FolderRiskOf(path, geteuid());
  if (risk.is_refused) {
    return absl::FailedPreconditionError(risk.text);
  }
  *warning = std::move(risk.text);
  return absl::OkStatus();
}

// Removes a socket file that nobody listens at.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address, int type) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus("cannot look at", path);
  }
  if (!S_ISSOCK(file.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " exists and is not a socket"));
  }
  const Fd probe = MakeSocket(type);
  // Anything but "refused" comes from somebody: a full backlog, or a listener of another socket
  // type.
  if (!probe.is_valid() || TryConnect(probe, address) != ECONNREFUSED) {
    return absl::FailedPreconditionError(
        absl::StrCat("another process listens at ", path, ", a file of uid ", file.st_uid));
  }
  return unlink(path.c_str()) == 0 || errno == ENOENT ? absl::OkStatus()
                                                      : ErrnoStatus("cannot replace", path);
}

}  // namespace

FolderRisk FolderRiskOf(const std::string& path, uid_t owner) {
  const std::string folder = FolderOf(path);
  struct statx facts {};
  struct stat link {};
  if (statx(AT_FDCWD, folder.c_str(), 0, STATX_BASIC_STATS, &facts) != 0 ||
      lstat(folder.c_str(), &link) != 0) {
    return {};
  }
  const bool is_narrow =
      S_ISDIR(link.st_mode) && link.st_uid == owner && (link.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  constexpr std::string_view kDefault = "/tmp/cairn-";
  const bool is_default =
      folder.starts_with(kDefault) && folder.find('/', kDefault.size()) == std::string::npos;
  if (is_default && !is_narrow) {
    return {.is_refused = true,
            .text = absl::StrCat(folder, " must be a folder of uid ", owner, " with mode 0700")};
  }
  std::string who;
  if ((facts.stx_mode & S_IWOTH) != 0) {
    who = "everybody";
  } else if ((facts.stx_mode & S_IWGRP) != 0) {
    who = absl::StrCat("group ", facts.stx_gid);
  } else if (facts.stx_uid != owner && facts.stx_uid != 0) {
    who = absl::StrCat("uid ", facts.stx_uid);
  } else {
    return {};
  }
  const bool is_sticky = (facts.stx_mode & S_ISVTX) != 0;
  // Of a kernel that cannot tell, any folder may be one.
  const bool is_mount = (facts.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) == 0 ||
                        (facts.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  return {.is_refused = (facts.stx_mode & S_IWOTH) != 0 && !is_sticky && !is_mount,
          .text = absl::StrCat(folder, " is writable by ", who, ", who could replace ", path,
                               ": give it mode 0750 or 2750, or mount it read-only for clients")};
}

absl::StatusOr<SocketFile> SocketFile::Listen(const std::string& path, int type, mode_t mode) {
  CAIRN_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  std::string warning;
  CAIRN_RETURN_IF_ERROR(PrepareFolderOf(path, &warning));
  CAIRN_ASSIGN_OR_RETURN(const PathLock lock, PathLock::Take(path));
  CAIRN_RETURN_IF_ERROR(RemoveStale(path, address, type));
  SocketFile made(path, type, mode, MakeSocket(type));
  // The file takes the mode of the socket, less the umask: never wider than it should be, not even
  // for a moment. chmod() then undoes a narrow umask.
  if (!made.socket_.is_valid() || fchmod(made.get(), mode) != 0 ||
      bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus("cannot bind", path);
  }
  if (type == SOCK_STREAM) {
    RefuseDescriptors(made.get());  // its bytes come without; whoever reads them asks for none
  }
  made.file_.Reset(open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  const std::string file = absl::StrCat("/proc/self/fd/", made.file_.get());
  if (!IsAt(path, made.file_) || chmod(file.c_str(), mode) != 0 ||
      listen(made.get(), kBacklog) != 0) {
    return ErrnoStatus("cannot listen at", path);
  }
  if (!warning.empty()) {
    LogWarn("transport", "socket can be replaced by other users", {{"why", warning}});
  }
  return made;
}

absl::StatusOr<bool> SocketFile::Keep() {
  if (IsAt(path_, file_)) {
    return false;
  }
  CAIRN_ASSIGN_OR_RETURN(SocketFile made, Listen(path_, type_, mode_));
  RemoveOurs();
  if (dup3(made.get(), socket_.get(), O_CLOEXEC) < 0) {
    return ErrnoStatus("cannot listen again at", path_);
  }
  file_ = std::move(made.file_);
  return true;
}

void SocketFile::RemoveOurs() const {
  // The kernel knows where a file was moved to.
  std::array<char, PATH_MAX> moved{};
  const ssize_t bytes =
      readlink(absl::StrCat("/proc/self/fd/", file_.get()).c_str(), moved.data(), moved.size());
  for (const std::string& path :
       {path_, std::string(moved.data(), static_cast<size_t>(std::max<ssize_t>(bytes, 0)))}) {
    if (IsAt(path, file_)) {
      unlink(path.c_str());
    }
  }
}

SocketFile::~SocketFile() { RemoveOurs(); }

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
