// SPDX-License-Identifier: Apache-2.0
#pragma once
// gRPC's connections of the control plane. For each connection, this class knows the user at the
// other end. If too many connections have no session, it closes one (base/newcomers.h).
//
// gRPC names the connection of a call by the number of its file descriptor ("fd:17"). gRPC closes
// the descriptor only after the connection's last call. So no other connection gets the number
// while a call may ask for its peer. A test checks this. This class keeps a second descriptor of
// each connection, so that it can end a connection even after gRPC has closed the first descriptor.
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
  struct Limits {  // limits for connections without a session
    size_t count_max = 0;
    size_t operators_max = 0;  // in addition, for operators' listener
  };
  struct Peer {
    PeerIdentity identity;
    // The connection came through the operators' address. The policy is asked as well, unless the
    // peer is trusted.
    bool is_operator = false;
    bool is_trusted = false;  // only the daemon's own user can use the address
    uint64_t number = 0;      // the connection's number, never reused; 0: no such peer
  };

  explicit ControlConnections(const Limits& limits)
      : newcomers_(limits.count_max), operators_(limits.operators_max) {}

  // Adds a connection that gRPC is about to get as `fd`. `ours` is another descriptor of the
  // connection. `is_apart` is true if the connection came through a listener for operators only.
  // Ends a connection if there are too many. base/newcomers.h says which one, by the `party` of
  // each.
  void Add(int fd, Fd ours, const Peer& peer, bool is_apart, uint64_t party);
  // Removes a closed connection.
  void Remove(uint64_t number);
  // Returns the peer of a call. `peer` is gRPC's name for the call's peer.
  Peer PeerOf(std::string_view peer) const;

  // Counts a session of the connection. A connection with a session is never ended to make room.
  // Unknown numbers are ignored.
  void BeginSession(uint64_t number);
  void EndSession(uint64_t number);

  size_t count() const;
  uint64_t ended_count() const { return ended_.Value(); }  // connections ended to make room

 private:
  struct Connection {
    int fd = -1;  // the number that gRPC uses
    Fd ours;
    Peer peer;
    uint64_t party = 0;
    bool is_apart = false;
    int sessions = 0;
    uint64_t turn = 0;  // its id in Newcomers; 0 while it has a session
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
