// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tracks connections that have not sent their hello yet, and picks the one to close when there are
// too many.
//
// A party is a property that peers cannot choose: the user of a unix socket, or the host of a TCP
// connection. The connection to close is the oldest one of the party that has the most connections.
// So a flood from one party closes only connections of that party, and a new connection is always
// accepted.
//
// Thread-safety: Thread-compatible.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace cairn {

// Returns the party of the peer of a connected socket. All sockets that are neither unix nor TCP
// sockets have the same party.
uint64_t PartyOf(int socket);
// Returns the party of all peers that connect through one --door folder. Folders are numbered from
// 0. The users of a folder may have the same uid as users of another folder, so the uid cannot be
// the party.
uint64_t PartyOfDoor(size_t index);

class Newcomers {
 public:
  // REQUIRES: count_max > 0.
  explicit Newcomers(size_t count_max) : count_max_(count_max) {}

  // Adds a connection. If there are now too many, removes and returns the connection to close.
  // REQUIRES: `id` is greater than all earlier ones.
  std::optional<uint64_t> Add(uint64_t id, uint64_t party);
  // Removes a connection that has sent its hello or was closed. Returns false if the connection was
  // not tracked.
  bool Remove(uint64_t id);
  size_t count() const { return party_of_.size(); }

 private:
  // Returns the party with the most connections. If several have equally many, returns the party
  // with the oldest connection.
  uint64_t LargestParty() const;

  const size_t count_max_;
  std::map<uint64_t, uint64_t> party_of_;
  std::map<uint64_t, std::set<uint64_t>> ids_of_;  // by party; no set is empty
};

}  // namespace cairn
