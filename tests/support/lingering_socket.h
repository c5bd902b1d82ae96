// SPDX-License-Identifier: Apache-2.0
#pragma once
// A descriptor whose last close() blocks. A hostile client could send one.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/file.h"

namespace cairn {

// A TCP connection on loopback with bytes that its other end does not read. The last close() of
// `socket` blocks until `reader` is closed.
struct LingeringSocket {
  Fd socket;
  Fd reader;
  std::thread closing;

  LingeringSocket() = default;
  LingeringSocket(LingeringSocket&&) = default;
  LingeringSocket& operator=(LingeringSocket&&) = delete;
  ~LingeringSocket() {
    reader.Reset();
    if (closing.joinable()) closing.join();
  }
  // Closes this process's copy. Unless `is_sent`, the close does not block.
  void LetGo(bool is_sent) {
    const linger none{};
    if (!is_sent) ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    closing = std::thread([ours = std::move(socket)]() mutable { ours.Reset(); });
  }
};

// Makes a socket that blocks for at most so many seconds.
inline LingeringSocket MakeLingeringSocket(int seconds) {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  const int buffer = 4096;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
  CAIRN_CHECK(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
              ::listen(listener.get(), 1) == 0 &&
              ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  LingeringSocket made;
  made.socket.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CAIRN_CHECK(::connect(made.socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  made.reader.Reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const std::string text(64 << 10, 'x');
  while (::send(made.socket.get(), text.data(), text.size(), MSG_DONTWAIT) > 0) {
  }
  const linger lingers{1, seconds};
  CAIRN_CHECK(::setsockopt(made.socket.get(), SOL_SOCKET, SO_LINGER, &lingers, sizeof lingers) ==
              0);
  return made;
}

}  // namespace cairn
