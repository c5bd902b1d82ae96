// SPDX-License-Identifier: Apache-2.0
#include "transport/local/socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace cairn::transport {

// --- Messages ------------------------------------------------------------------------------------

namespace {

static_assert(std::endian::native == std::endian::little, "envelopes are copied, not swapped");

constexpr uint32_t kMagic = 0x4C4E5243;  // "CRNL"
constexpr uint8_t kVersion = 1;

struct Layout {
  uint32_t magic;
  uint8_t version;
  uint8_t direction;
  uint16_t frame_bytes;
  uint64_t payload_place;
  uint64_t payload_bytes;
  uint64_t reply_place;
  uint64_t reply_capacity_bytes;
};
static_assert(sizeof(Layout) == kEnvelopeBytes);

}  // namespace

MessageBytes Serialize(const Envelope& envelope, const proto::FrameBytes& frame) {
  CAIRN_CHECK(frame.size >= proto::kFrameHeadBytes && frame.size <= proto::kFrameBytesMax);
  const Layout layout{kMagic,
                      kVersion,
                      static_cast<uint8_t>(envelope.direction),
                      frame.size,
                      envelope.payload_place,
                      envelope.payload_bytes,
                      envelope.reply_place,
                      envelope.reply_capacity_bytes};
  MessageBytes message;
  std::memcpy(message.data.data(), &layout, sizeof(layout));
  std::memcpy(message.data.data() + sizeof(layout), frame.data.data(), frame.size);
  message.size = sizeof(layout) + frame.size;
  return message;
}

absl::StatusOr<Message> ParseMessage(std::span<const std::byte> bytes, Direction expected,
                                     bool is_mapped) {
  if (bytes.size() < kEnvelopeBytes + proto::kFrameHeadBytes || bytes.size() > kMessageBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("message: it has ", bytes.size(), " bytes, expected ",
                     kEnvelopeBytes + proto::kFrameHeadBytes, " to ", kMessageBytesMax));
  }
  Layout layout;
  std::memcpy(&layout, bytes.data(), sizeof(layout));
  if (layout.magic != kMagic) {
    return absl::InvalidArgumentError("message: magic is not CRNL");
  }
  if (layout.version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("message: version is ", int{layout.version}, ", expected ", int{kVersion}));
  }
  const auto direction = static_cast<Direction>(layout.direction);
  const bool is_lending =
      is_mapped && (expected == Direction::kRequest
                        ? direction == Direction::kLendableRequest
                        : direction == Direction::kLoan || direction == Direction::kLoanOfPlaces);
  if (direction != expected && !is_lending) {
    return absl::InvalidArgumentError(absl::StrCat("message: direction is ", int{layout.direction},
                                                   ", expected ", static_cast<int>(expected)));
  }
  if (layout.frame_bytes != bytes.size() - kEnvelopeBytes) {
    return absl::InvalidArgumentError(absl::StrCat("message: frame_bytes is ", layout.frame_bytes,
                                                   ", expected ", bytes.size() - kEnvelopeBytes));
  }
  Message message;
  message.envelope = {direction, layout.payload_place, layout.payload_bytes, layout.reply_place,
                      layout.reply_capacity_bytes};
  message.frame.size = layout.frame_bytes;
  std::memcpy(message.frame.data.data(), bytes.data() + kEnvelopeBytes, layout.frame_bytes);
  message.seq = *proto::SeqOf(message.frame.bytes());
  return message;
}

std::span<const std::byte> FirstMessage(std::span<const std::byte> packet) {
  if (packet.size() < kEnvelopeBytes) {
    return packet;
  }
  uint16_t frame_bytes = 0;
  std::memcpy(&frame_bytes, packet.data() + offsetof(Layout, frame_bytes), sizeof(frame_bytes));
  return packet.first(std::min(packet.size(), kEnvelopeBytes + frame_bytes));
}

void Batch::Add(const MessageBytes& message) {
  CAIRN_CHECK(!is_full());
  if (bytes_.capacity() == 0) {
    bytes_.reserve(kPacketBytesMax);
  }
  const std::span<const std::byte> bytes = message.bytes();
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  ++count_;
}

void Batch::Clear() {
  bytes_.clear();
  count_ = 0;
}

// --- Packets -------------------------------------------------------------------------------------

namespace {

// SCM_MAX_FD of the kernel: the maximum number of descriptors in one packet.
constexpr size_t kPacketFdsMax = 253;
constexpr size_t kSentFdsMax = 2;
// New in Linux 6.16, so older headers lack it.
constexpr int kPassRights = 83;

std::vector<Fd> TakeFds(msghdr& header) {
  std::vector<Fd> fds;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

Packet ReceivePacket(int socket) {
  Packet packet;
  iovec part{packet.data.data(), packet.data.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kPacketFdsMax * sizeof(int))> control;
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t bytes = 0;
  do {
    bytes = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (bytes < 0 && errno == EINTR);  // ends: a signal interrupts once
  if (bytes < 0) {
    const bool is_empty = errno == EAGAIN || errno == EWOULDBLOCK;
    packet.outcome = is_empty ? Packet::Outcome::kNothing : Packet::Outcome::kClosed;
    return packet;
  }
  packet.fds = TakeFds(header);
  packet.size = static_cast<size_t>(bytes);
  packet.is_cut = (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  // An empty packet cannot be distinguished from the end, and is no message.
  packet.outcome = bytes == 0 ? Packet::Outcome::kClosed : Packet::Outcome::kPacket;
  return packet;
}

absl::Status SendPacket(int socket, std::span<const std::byte> bytes, int fd) {
  return SendPacket(socket, bytes, std::span<const int>(&fd, fd >= 0 ? 1 : 0));
}

absl::Status SendPacket(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  CAIRN_CHECK(fds.size() <= kSentFdsMax);
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kSentFdsMax * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);  // ends: a signal interrupts once
  if (sent >= 0) {
    return absl::OkStatus();
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS) {
    return absl::ResourceExhaustedError("the socket is full");
  }
  return absl::UnavailableError(absl::StrCat("the other side of the socket is gone: ",
                                             std::generic_category().message(errno)));
}

bool RefuseDescriptors(int socket) {
  const int off = 0;
  return setsockopt(socket, SOL_SOCKET, kPassRights, &off, sizeof off) == 0;
}

bool EndConnection(int socket) {
  shutdown(socket, SHUT_RDWR);  // nothing arrives after this
  // Every packet then carries the sender's credentials. This distinguishes an empty packet from the
  // end.
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  while (true) {  // ends: each turn receives a packet
    std::byte first;
    iovec part{&first, sizeof first};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(ucred))> control;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    // A peek receives no descriptors. If the packet has some, they do not fit next to the
    // credentials.
    const ssize_t bytes = recvmsg(socket, &header, MSG_DONTWAIT | MSG_PEEK);
    if ((header.msg_flags & MSG_CTRUNC) != 0) {
      return false;
    }
    if (bytes < 0 || CMSG_FIRSTHDR(&header) == nullptr) {
      return true;
    }
    recv(socket, &first, sizeof first, MSG_DONTWAIT);
  }
}

void CloseSlowly(Fd socket, std::vector<Fd> fds) {
  Packet packet;
  packet.fds = std::move(fds);
  shutdown(socket.get(), SHUT_RDWR);
  do {
    for (const Fd& fd : packet.fds) {
      const linger none{};
      setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);  // fails if it is no socket
    }
    packet.fds.clear();
    packet = ReceivePacket(socket.get());
  } while (packet.outcome == Packet::Outcome::kPacket || !packet.fds.empty());
  // Ends: the connection is shut down, so no more packets arrive.
}

// --- Socket files --------------------------------------------------------------------------------

namespace {

// The kernel's default maximum (net.core.somaxconn). gRPC connects without waiting, and reports a
// full backlog as if nobody were listening.
constexpr int kBacklog = 4096;
// Longer than another daemon holds the lock during its start.
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

// Returns 0 or errno.
int TryConnect(const Fd& socket, const sockaddr_un& address) {
  return connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0
             ? 0
             : errno;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Returns whether the path names the open file.
bool IsAt(const std::string& path, const Fd& file) {
  struct stat open {};
  struct stat there {};
  return file.is_valid() && fstat(file.get(), &open) == 0 && lstat(path.c_str(), &there) == 0 &&
         open.st_dev == there.st_dev && open.st_ino == there.st_ino;
}

// Held while the path is checked and bound. If two daemons start at the same time, only one gets
// the socket. The lock is a separate file, because every user who can read a folder can lock the
// folder.
class PathLock {
 public:
  static absl::StatusOr<PathLock> Take(const std::string& path) {
    PathLock lock(absl::StrCat(path, ".lock"));
    const absl::Time deadline = MonotonicNow() + kLockWait;
    while (true) {  // ends at the deadline
      CAIRN_RETURN_IF_ERROR(lock.Open());
      const int error = flock(lock.file_.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
      // The previous holder may have removed the file meanwhile.
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

// Makes a missing folder. Sets *warning to a risk of the folder that is not refused.
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

// Removes a socket file that has no listener.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address, int type) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus("cannot look at", path);
  }
  if (!S_ISSOCK(file.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " exists and is not a socket"));
  }
  const Fd probe = MakeSocket(type);
  // Any result other than "refused" means that a process listens: its backlog is full, or its
  // socket has another type.
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
  // If the kernel does not report mount points, any folder may be one.
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
  // The mode of the socket, minus the umask, becomes the mode of the file. The file is therefore
  // never too open. chmod() then adds the bits that the umask removed.
  if (!made.socket_.is_valid() || fchmod(made.get(), mode) != 0 ||
      bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus("cannot bind", path);
  }
  if (type == SOCK_STREAM) {
    RefuseDescriptors(made.get());  // gRPC needs no descriptors
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
  Fd old(fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0));
  if (!old.is_valid() || dup3(made.get(), socket_.get(), O_CLOEXEC) < 0) {
    return ErrnoStatus("cannot listen again at", path_);
  }
  // On a thread of its own: connections in the backlog may have sent descriptors, and to close
  // these may take as long as their senders like.
  std::thread([backlog = std::move(old)]() mutable { backlog.Reset(); }).detach();
  file_ = std::move(made.file_);
  return true;
}

void SocketFile::RemoveOurs() const {
  // The kernel reports the new path of a moved file.
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
    absl::SleepFor(absl::Milliseconds(1));  // the listener's backlog is full
  }
}

}  // namespace cairn::transport
