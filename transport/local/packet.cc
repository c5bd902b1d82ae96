// SPDX-License-Identifier: Apache-2.0
#include "transport/local/packet.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cairn::transport {
namespace {

// The kernel's SCM_MAX_FD: what one packet can carry at most.
constexpr size_t kPacketFdsMax = 253;
constexpr size_t kSentFdsMax = 2;
// Of Linux 6.16; the headers of older systems lack it.
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
  // A packet of no bytes looks like the end, and is no message either.
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
  shutdown(socket, SHUT_RDWR);  // from here on nothing comes
  // Each packet then says whose it is, which tells an empty one from the end.
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  while (true) {  // ends: each turn takes a packet
    std::byte first;
    iovec part{&first, sizeof first};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(ucred))> control;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    // A look receives no descriptor; one that is there has no room beside the identity.
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
      setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);  // or it is no socket
    }
    packet.fds.clear();
    packet = ReceivePacket(socket.get());
  } while (packet.outcome == Packet::Outcome::kPacket || !packet.fds.empty());
  // Ends: what waited when the connection was shut down.
}

}  // namespace cairn::transport
