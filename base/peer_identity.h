// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who is at the other end of a connection: a user of this host according to the kernel, the holder
// of a certificate that was verified, or nobody that can be named.
//
// Identities are compared by value, and only in what names the peer: a certificate that was renewed
// names the same peer as the one before.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace cairn {

// The process that connected a unix socket.
struct UnixPeer {
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::string door;  // the --door folder whose socket it came through; empty: none of them
  friend bool operator==(const UnixPeer&, const UnixPeer&) = default;
};

// The holder of a client certificate. It has a URI or DNS names; both may be there.
struct CertificatePeer {
  std::string uri;               // the only URI of the certificate; empty: it has none
  std::vector<std::string> dns;  // in lower case, sorted, each once
  // The domain that the CA bundle of its root was given for; empty: a bundle for any domain.
  std::string trust_domain;

  // Not compared: these change when the certificate is renewed.
  std::string serial;  // lower-case hexadecimal, without leading zeros
  absl::Time not_after = absl::InfiniteFuture();
  std::string root;  // SHA-256 of the root's DER, in lower-case hexadecimal

  friend bool operator==(const CertificatePeer& a, const CertificatePeer& b) {
    return a.uri == b.uri && a.dns == b.dns && a.trust_domain == b.trust_domain;
  }
};

struct PeerIdentity {
  std::variant<std::monostate, UnixPeer, CertificatePeer> peer;

  PeerIdentity() = default;  // nobody: plain TCP, UCX
  explicit PeerIdentity(UnixPeer from_unix) : peer(std::move(from_unix)) {}
  explicit PeerIdentity(CertificatePeer from_certificate) : peer(std::move(from_certificate)) {}

  bool is_known() const { return !std::holds_alternative<std::monostate>(peer); }
  // Null: the peer is of another kind.
  const UnixPeer* unix_peer() const { return std::get_if<UnixPeer>(&peer); }
  const CertificatePeer* certificate() const { return std::get_if<CertificatePeer>(&peer); }
  // For logs and errors: "uid 1000", "uid 1000 by /run/cairn/team-a",
  // "spiffe://prod.example/ns/a/sa/b", "engine-7.example", "unknown".
  std::string ToString() const;

  friend bool operator==(const PeerIdentity&, const PeerIdentity&) = default;
};

// Returns the user of the process that connected a unix socket, at the time it connected. Other
// sockets have an unknown peer.
PeerIdentity PeerIdentityOf(int socket);

}  // namespace cairn
