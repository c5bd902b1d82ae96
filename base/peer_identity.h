// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who is behind a connection, as the kernel says it. A connection without one (TCP) has none.

#include <sys/socket.h>

#include <cstdint>
#include <optional>

namespace cairn {

struct PeerIdentity {
  uint32_t uid = 0;
  uint32_t gid = 0;
  friend bool operator==(const PeerIdentity&, const PeerIdentity&) = default;
};

// Of the process that connected a unix socket, as it was then. None: another kind of socket.
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
