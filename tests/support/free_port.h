// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ports for processes that cannot bind port 0 and say which they got. ports.py is the same for
// Python.

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <random>

#include "base/file.h"

namespace cairn {

// Returns a port that is free on all addresses. It is below those that Linux gives out by itself
// (32768 and up): nobody else is given it between its choice and the moment when the process binds
// it.
inline int FreePort() {
  std::random_device random;
  std::uniform_int_distribution<int> port(20000, 31999);
  while (true) {
    const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port(random)));
    if (::bind(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
      return ntohs(address.sin_port);
  }
}

}  // namespace cairn
