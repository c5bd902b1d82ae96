// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides who is a member, from the sets of a source and from what members say of themselves.
//
// Grace: a member that the source no longer lists stays for a while. A restart moves nothing.
// Guard: a source that takes many members away at once is not believed at once. While more than a
// third of the members are missing, each stays for kGuardTime. An etcd that stalls ends all leases
// when it wakes, and then lists no members.
//
// Additions and new addresses count at once. A member that never joined, or was refused, leaves at
// once.
//
// A listed member without a name has its address as its name until it is met there.
//
// Thread-safety: Thread-compatible. No I/O, no clock: `now` is given.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/peer_identity.h"
#include "service/members/member_source.h"
#include "service/members/view.h"

namespace cairn {

inline constexpr absl::Duration kGuardTime = absl::Minutes(10);

// What a member says of itself in its Hello.
struct Met {
  std::string name = {};
  std::string address = {};  // where it was reached; gives a listed member without a name its name
  std::string zone = {};     // empty: keep the one of the source
  std::string tls_server = {};  // the name in its certificate; empty: no TLS
  PeerIdentity identity = {};   // of the certificate; unknown: no TLS
  uint64_t incarnation = 0;
  bool is_draining = false;
};

// Errors: InvalidArgument: the name, the address or the zone is none.
absl::Status CheckListed(const ListedMember& one);

class Roll {
 public:
  // `self` joins at once, and never leaves.
  Roll(ListedMember self, uint64_t incarnation, absl::Duration grace, absl::Time now);

  // Takes the full set of the source. Errors: InvalidArgument (too many, or a name or an address
  // that is none); then nothing has changed. Of two entries with one name, the first counts.
  absl::Status Take(const std::vector<ListedMember>& listed, absl::Time now);
  void Meet(const Met& met, absl::Time now);
  void Refuse(std::string_view name, std::string_view reason, absl::Time now);
  // Removes members whose grace is over.
  void Expire(absl::Time now);

  // Grows with each change.
  uint64_t generation() const { return generation_; }
  // Whether more than a third of the members are missing from the source's set.
  bool is_guarded() const;
  // Whether the last set had this daemon itself.
  bool is_self_listed() const { return is_self_listed_; }
  View MakeView() const;

 private:
  struct Entry {
    Member member;  // its state is made by StateOf()
    bool is_met = false, is_draining = false, is_listed = true;
    absl::Time unlisted_at;  // if it is not listed
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  static MemberState StateOf(const Entry& entry);
  // Brings the state of an entry that has changed up to date.
  void Refresh(Entry& entry, absl::Time now);
  Entry& Enter(const std::string& name, absl::Time now);
  // The entry is missing from the source's set. Returns true if it leaves at once.
  bool Unlist(Entry& entry, absl::Time now);
  // The set by name. An entry without a name gets the one that was met at its address, or else its
  // address as a name.
  absl::StatusOr<std::map<std::string, ListedMember, std::less<>>> NameAll(
      const std::vector<ListedMember>& listed) const;
  size_t CountOf(MemberState state) const;

  const std::string self_;
  const absl::Duration grace_;
  Entries entries_;  // by name
  std::map<std::string, std::string, std::less<>>
      met_;  // address of an entry without a name -> name
  std::map<std::string, uint32_t, std::less<>> numbers_;  // of all names
  uint64_t generation_ = 1;
  bool is_self_listed_ = false;
};

}  // namespace cairn
