// SPDX-License-Identifier: Apache-2.0
#pragma once
// A view: the members of the cluster as one daemon knows them at one moment.
//
// A member is a daemon of the cluster. Its name is its identity. It keeps the name over restarts;
// its address and its incarnation may change. Views of different daemons may differ. A view that is
// wrong costs misses, never wrong bytes.
//
// Thread-safety: Immutable.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "base/peer_identity.h"

namespace cairn {

inline constexpr size_t kMembersMax = 4096;
enum class MemberState : uint8_t {
  kUnmet,     // the source lists it; it has not answered Hello yet
  kJoined,    // it answered Hello, and the source lists it
  kHeld,      // it had joined, and the source no longer lists it; it leaves after the grace
  kDraining,  // it said that it drains
  kRefused,   // it answered Hello as a daemon that cannot be a member; `refusal` says why
};
inline constexpr size_t kMemberStates = 5;
std::string_view Name(MemberState state);  // "unmet", "joined", "held", "draining", "refused"

struct Member {
  std::string name;
  uint32_t number = 0;     // from 1; belongs to the name for the life of this process
  std::string address;     // of its peer port, HOST:PORT
  std::string zone;        // empty: unknown
  std::string tls_server;  // the name in its certificate, from its Hello; empty: none
  PeerIdentity identity;   // of its certificate, likewise; unknown without TLS
  MemberState state = MemberState::kUnmet;
  bool is_self = false;
  uint64_t incarnation = 0;  // of its process, from its Hello; 0: it has not said one
  std::string refusal;       // empty unless `state` is kRefused
  absl::Time since;          // of the state, on the clock of Members

  // False for a listed member that has not told its name yet: `name` is then its address.
  bool has_name() const { return name != address; }
  // Whether the member can be a home and a holder.
  bool counts() const { return state != MemberState::kUnmet && state != MemberState::kRefused; }
};

struct View {
  uint64_t generation = 0;      // grows with each change of a member
  std::vector<Member> members;  // by name, ascending; includes this daemon
  uint64_t hash = 0;  // of the names of those that count: equal for equal names, in every process
  bool is_guarded = false;  // the guard holds an update of the source

  // Returns null if there is no such member.
  const Member* Find(std::string_view name) const;
  const Member* Find(uint32_t number) const;
  // Returns the members that count and have told their name, without this daemon: `max` at most.
  std::vector<Member> Others(size_t max) const;
};

using ViewPtr = std::shared_ptr<const View>;

// FNV-1a, 64 bits, of a text. `hash` is that of the bytes before it.
uint64_t HashOf(std::string_view text, uint64_t hash = 0xcbf29ce484222325);
// The same over the names of the members that count, each followed by a zero byte.
// REQUIRES: sorted by name.
uint64_t HashOfNames(const std::vector<Member>& members);

}  // namespace cairn
