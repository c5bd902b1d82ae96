// SPDX-License-Identifier: Apache-2.0
#pragma once
// The connections that gRPC has of the control plane: who is behind each, and which has to go when
// too many have no session (base/newcomers.h).
//
// gRPC tells which connection a call came by as the number of its file descriptor ("fd:17"). gRPC
// closes the descriptor only after the last call of the connection, so that no other connection has
// the number while a call may ask for it; a test checks that gRPC does so. A second descriptor of
// each connection is kept here, to end the connection also where gRPC has closed the first.
//
// Thread-safety: Thread-safe.

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/newcomers.h"
#include "base/peer_identity.h"

namespace cairn {

class ControlConnections {
 public:
  struct Limits {  // of connections without a session
    size_t count_max = 0;
    size_t operators_max = 0;  // beside those, of a door of their own
  };
  struct Peer {
    std::optional<PeerIdentity> identity;  // none: a TCP connection, or no such peer
    bool is_operator = false;
    uint64_t number = 0;  // of the connection, never used again; 0: no such peer
  };

  explicit ControlConnections(const Limits& limits)
      : newcomers_(limits.count_max), operators_(limits.operators_max) {}

  // gRPC is about to have the connection, as `fd`; `ours` is another descriptor of it. With
  // `is_apart` it came by a door of operators alone. Where there are too many, one of them ends.
  void Add(int fd, Fd ours, const Peer& peer, bool is_apart);
  // It is over.
  void Remove(uint64_t number);
  // Who is behind a call whose gRPC peer is `peer`.
  Peer PeerOf(std::string_view peer) const;

  // The connection has a session more, and is not ended meanwhile. Unknown numbers are ignored.
  void BeginSession(uint64_t number);
  void EndSession(uint64_t number);

  size_t count() const;
  uint64_t ended_count() const { return ended_.Value(); }  // for others

 private:
  struct Connection {
    int fd = -1;  // gRPC's
    Fd ours;
    Peer peer;
    uint64_t party = 0;
    bool is_apart = false;
    int sessions = 0;
    uint64_t turn = 0;  // among those without a session; 0: it is none of them
  };
  Newcomers& Of(const Connection& connection) {
    return connection.is_apart ? operators_ : newcomers_;
  }
  void Enter(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);  // by number
  absl::flat_hash_map<int, uint64_t> numbers_ ABSL_GUARDED_BY(mutex_);             // by gRPC's fd
  absl::flat_hash_map<uint64_t, uint64_t> by_turn_ ABSL_GUARDED_BY(mutex_);
  uint64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;
  Newcomers newcomers_ ABSL_GUARDED_BY(mutex_), operators_ ABSL_GUARDED_BY(mutex_);
  Counter ended_;
};

}  // namespace cairn
