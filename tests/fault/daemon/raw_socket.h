// SPDX-License-Identifier: Apache-2.0
#pragma once
// The unix socket without the SDK's transport: packets of any bytes, and memory of any kind.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "base/file.h"
#include "proto/frame.h"
#include "transport/local/socket.h"

namespace cairn {

inline Fd ConnectSocket(const std::string& path) {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const timeval limit{3, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

// Sends `bytes`, with a file descriptor where that is valid.
inline void SendWithFd(int socket, const std::string& bytes, int fd) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  (void)::sendmsg(socket, &message, MSG_NOSIGNAL);
}

inline std::string RandomBytes(std::mt19937_64& random, size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// What the daemon answers on a raw socket: the status of its reply, or Unavailable where it closes.
inline absl::Status ReadAnswer(int socket) {
  std::byte bytes[1024];
  const ssize_t count = ::recv(socket, bytes, sizeof bytes, 0);
  if (count <= 0) return absl::UnavailableError(count == 0 ? "closed" : std::strerror(errno));
  const auto message = transport::ParseMessage(std::span(bytes, static_cast<size_t>(count)),
                                               transport::Direction::kReply);
  if (!message.ok()) return message.status();
  const auto frame = proto::ParseFrame(message->frame.bytes());
  return frame.ok() ? proto::StatusOf(*frame) : frame.status();
}

inline std::string Text(const transport::MessageBytes& message) {
  return {reinterpret_cast<const char*>(message.data.data()), message.size};
}

// A memfd of `bytes`, with all the seals there should be or none.
inline Fd MakeMemory(off_t bytes, bool is_sealed) {
  Fd fd(::memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), bytes), 0);
  if (is_sealed) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  }
  return fd;
}

inline Fd Written(Fd fd, size_t bytes) {
  const std::string zeros(bytes, '\0');
  EXPECT_EQ(::pwrite(fd.get(), zeros.data(), bytes, 0), static_cast<ssize_t>(bytes));
  return fd;
}

inline uint64_t AllocatedBytes(const Fd& fd) {
  struct stat file {};
  EXPECT_EQ(::fstat(fd.get(), &file), 0);
  return static_cast<uint64_t>(file.st_blocks) * 512;
}

}  // namespace cairn
