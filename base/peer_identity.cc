// SPDX-License-Identifier: Apache-2.0
#include "base/peer_identity.h"

#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cairn {

std::string PeerIdentity::ToString() const {
  if (const UnixPeer* user = unix_peer()) {
    return absl::StrCat("uid ", user->uid, user->door.empty() ? "" : " by ", user->door);
  }
  const CertificatePeer* holder = certificate();
  if (holder == nullptr) return "unknown";
  return holder->uri.empty() ? absl::StrJoin(holder->dns, ",") : holder->uri;
}

PeerIdentity PeerIdentityOf(int socket) {
  int domain = 0;
  ucred peer{};
  socklen_t domain_bytes = sizeof domain, peer_bytes = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &domain_bytes) != 0 ||
      domain != AF_UNIX || ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) != 0) {
    return {};
  }
  return PeerIdentity(UnixPeer{.uid = peer.uid, .gid = peer.gid, .door = {}});
}

}  // namespace cairn
