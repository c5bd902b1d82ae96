// SPDX-License-Identifier: Apache-2.0
#pragma once
// The user behind a connection, according to the kernel. TCP connections have none.

#include <sys/socket.h>

#include <cstdint>
#include <optional>

namespace cairn {

struct PeerIdentity {
  uint32_t uid = 0;
  uint32_t gid = 0;
  friend bool operator==(const PeerIdentity&, const PeerIdentity&) = default;
};

// Returns the user of the process that connected a unix socket, at the time it connected. Returns
// nullopt for other sockets.
inline std::optional<PeerIdentity> PeerIdentityOf(int socket) {
  int domain = 0;
  ucred peer{};
  socklen_t domain_bytes = sizeof domain, peer_bytes = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &domain_bytes) != 0 ||
      domain != AF_UNIX || ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) != 0) {
    return std::nullopt;
  }
  return PeerIdentity{.uid = peer.uid, .gid = peer.gid};
}

}  // namespace cairn
