// SPDX-License-Identifier: Apache-2.0
#include "service/front/acceptor.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace cairn {
namespace {

constexpr int kBacklog = 4096;

Fd OpenSpare() { return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

absl::StatusOr<Fd> ListenAt(const addrinfo& info) {
  Fd fd(::socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd.is_valid() || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd.get(), info.ai_addr, info.ai_addrlen) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  return fd;
}

}  // namespace

Acceptor::Acceptor(Fd owned, int listener)
    : owned_(std::move(owned)), spare_(OpenSpare()), listener_(listener) {}

absl::StatusOr<Acceptor> Acceptor::Listen(const HostPort& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* info = nullptr;
  const int code =
      ::getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &info);
  if (code != 0) {
    return absl::InvalidArgumentError(absl::StrCat(address.ToString(), ": ", ::gai_strerror(code)));
  }
  const absl::Cleanup free_info = [info] { ::freeaddrinfo(info); };
  absl::StatusOr<Fd> listener = ListenAt(*info);
  if (!listener.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address.ToString(), ": ", listener.status().message()));
  }
  const int fd = listener->get();
  return Acceptor(*std::move(listener), fd);
}

Acceptor::Outcome Acceptor::Accept(Fd* socket) {
  const auto accept = [this] {
    return Fd(::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  };
  *socket = accept();
  if (socket->is_valid()) return Outcome::kPeer;
  switch (errno) {
    case EAGAIN:
      return Outcome::kNone;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      break;
    default:  // an error of the peer's connection, as accept(2) lists them
      return Outcome::kGone;
  }
  // The kernel reports this even when no peer waits. Another thread may take the freed descriptor.
  // The peer then waits for the next call.
  spare_.Reset();
  errno = 0;
  const bool is_turned_away = accept().is_valid();
  const bool is_nobody_there = !is_turned_away && errno == EAGAIN;
  spare_ = OpenSpare();
  if (is_nobody_there) return Outcome::kNone;
  return is_turned_away ? Outcome::kTurnedAway : Outcome::kStuck;
}

uint16_t Acceptor::port() const {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  if (::getsockname(listener_, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return 0;
  switch (storage.ss_family) {
    case AF_INET:
      return ntohs(reinterpret_cast<sockaddr_in&>(storage).sin_port);
    case AF_INET6:
      return ntohs(reinterpret_cast<sockaddr_in6&>(storage).sin6_port);
    default:
      return 0;
  }
}

}  // namespace cairn
