// SPDX-License-Identifier: Apache-2.0
#include "transport/stream/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace cairn::transport {
namespace {

constexpr int kBacklog = 1024;

absl::Status SocketError(std::string_view what, const SocketAddress& address) {
  return absl::UnavailableError(
      absl::StrCat(ToAbsl(what), " ", AddressText(address), ": ", std::strerror(errno)));
}

void Set(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof value);  // optional, so failures are ignored
}

}  // namespace

absl::StatusOr<Fd> ListenTcp(std::string_view host, uint16_t port, SocketAddress* address) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<SocketAddress> found, ResolveAddresses(host, port));
  SocketAddress bound = found.front();
  Fd socket(::socket(bound.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_valid()) return SocketError("cannot listen on", bound);
  Set(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(socket.get(), bound.get(), bound.bytes) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return SocketError("cannot listen on", bound);
  }
  bound.bytes = sizeof bound.storage;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.bytes) != 0) {
    return SocketError("cannot listen on", bound);
  }
  *address = bound;
  return socket;
}

absl::StatusOr<Fd> ConnectTcp(const SocketAddress& address, absl::Time deadline) {
  Fd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_valid()) return SocketError("cannot connect to", address);
  if (::connect(socket.get(), address.get(), address.bytes) != 0) {
    if (errno != EINPROGRESS) return SocketError("cannot connect to", address);
    pollfd ready{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    int count = 0;
    do {  // ends at the deadline
      const int64_t left = absl::ToInt64Milliseconds(deadline - MonotonicNow());
      if (left <= 0) {
        return absl::DeadlineExceededError(
            absl::StrCat("cannot connect to ", AddressText(address), ": no answer in time"));
      }
      count = ::poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
    } while (count == 0 || (count < 0 && errno == EINTR));
    int error = 0;
    socklen_t bytes = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) {
      errno = error;
      return SocketError("cannot connect to", address);
    }
  }
  KeepAlive(socket.get());
  return socket;
}

void KeepAlive(int socket) {
  Set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  Set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  Set(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

void CloseInOrder(Fd socket) {
  if (!socket.is_valid()) return;
  ::shutdown(socket.get(), SHUT_WR);
  std::array<std::byte, 4096> dropped;
  for (int i = 0; i < 64; ++i) {
    if (::recv(socket.get(), dropped.data(), dropped.size(), MSG_DONTWAIT) <= 0) break;
  }
}

}  // namespace cairn::transport
