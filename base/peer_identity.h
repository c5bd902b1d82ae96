// SPDX-License-Identifier: Apache-2.0
#pragma once
// The peer of a connection: a process of this host that the kernel identifies, the holder of a
// verified certificate, or unknown.
//
// Comparisons use only the fields that identify the peer. So a renewed certificate identifies the
// same peer as the previous one.

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
  std::string door;  // the --door folder of the socket; empty: not a door's socket
  friend bool operator==(const UnixPeer&, const UnixPeer&) = default;
};

// The holder of a client certificate. At least one of `uri` and `dns` is not empty.
struct CertificatePeer {
  std::string uri;               // the only URI of the certificate; empty: none
  std::vector<std::string> dns;  // in lower case, sorted, without duplicates
  // The trust domain of the CA bundle that contains the chain's root. Empty: the bundle is for all
  // domains.
  std::string trust_domain;

  // Not compared, because a renewed certificate has other values.
  std::string serial;  // lower-case hexadecimal, without leading zeros
  absl::Time not_after = absl::InfiniteFuture();
  std::string root;  // SHA-256 of the root's DER, in lower-case hexadecimal

  friend bool operator==(const CertificatePeer& a, const CertificatePeer& b) {
    return a.uri == b.uri && a.dns == b.dns && a.trust_domain == b.trust_domain;
  }
};

struct PeerIdentity {
  std::variant<std::monostate, UnixPeer, CertificatePeer> peer;

  PeerIdentity() = default;  // an unknown peer: plain TCP or UCX
  explicit PeerIdentity(UnixPeer from_unix) : peer(std::move(from_unix)) {}
  explicit PeerIdentity(CertificatePeer from_certificate) : peer(std::move(from_certificate)) {}

  bool is_known() const { return !std::holds_alternative<std::monostate>(peer); }
  // Null if the peer is of another kind.
  const UnixPeer* unix_peer() const { return std::get_if<UnixPeer>(&peer); }
  const CertificatePeer* certificate() const { return std::get_if<CertificatePeer>(&peer); }
  // Returns a text for logs and errors: "uid 1000", "uid 1000 by /run/cairn/team-a",
  // "spiffe://prod.example/ns/a/sa/b", "engine-7.example" or "unknown".
  std::string ToString() const;

  friend bool operator==(const PeerIdentity&, const PeerIdentity&) = default;
};

// Returns the user that a process had when it connected this unix socket. For other sockets,
// returns an unknown peer.
PeerIdentity PeerIdentityOf(int socket);

}  // namespace cairn
