// SPDX-License-Identifier: Apache-2.0
#pragma once
// Connections that have not said yet what they came for, and which of them has to go when there are
// too many.
//
// The oldest of the party that has most goes: a flood of one party puts out its own connections,
// and a newcomer always gets in. A party is what connections have in common that their peers
// cannot choose: the user of a unix socket, the host of a TCP connection.
//
// Thread-safety: Thread-compatible.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace cairn {

// Of whoever is behind a connected socket. Sockets of other kinds are all of one party.
uint64_t PartyOf(int socket);

class Newcomers {
 public:
  // REQUIRES: count_max > 0.
  explicit Newcomers(size_t count_max) : count_max_(count_max) {}

  // Takes in a connection. Answers the one that has to go for it, which is no longer here; none
  // while there is room. REQUIRES: `id` is above all that came before.
  std::optional<uint64_t> Add(uint64_t id, uint64_t party);
  // It has said what it came for, or has left. False: it was not here.
  bool Remove(uint64_t id);
  size_t count() const { return party_of_.size(); }

 private:
  // The party that has most; of several, that whose oldest is the oldest.
  uint64_t LargestParty() const;

  const size_t count_max_;
  std::map<uint64_t, uint64_t> party_of_;
  std::map<uint64_t, std::set<uint64_t>> ids_of_;  // by party; none is empty
};

}  // namespace cairn
