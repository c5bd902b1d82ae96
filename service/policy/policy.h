// SPDX-License-Identifier: Apache-2.0
#pragma once
// The policy: which tenants a peer may use, which peers are operators or members, which peers are
// refused, and the limits of each tenant. docs/guides/trust.md describes the file.
//
// Thread-safety: Immutable.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/peer_identity.h"

namespace cairn {

inline constexpr size_t kPolicyBytesMax = size_t{1} << 20;
inline constexpr size_t kPolicyRulesMax = 1024;      // rules of `identities`, and of `deny`
inline constexpr size_t kPolicyTenantsMax = 64;      // tenants of a rule, and in `tenants`
inline constexpr size_t kPolicyNameBytesMax = 2048;  // size of a name to match
inline constexpr uint32_t kUnmappedUid = 65534;  // the uid of all users of another user namespace

// A pattern that names peers. Exactly one of `uri`, `dns`, `serial`, `door` and `uid` is set.
struct PeerPattern {
  // In `uri`, a `*` stands for one whole segment of the path; in `dns`, for one whole label.
  std::string uri, dns, serial;
  std::string door;             // a --door folder; peers of any uid match
  std::optional<uint32_t> uid;  // also if it is kUnmappedUid, which matches nobody
  // Whether `uid` also matches peers that connect through a --door folder, where a pod chooses its
  // uid.
  bool is_uid_of_doors = false;
  bool Matches(const PeerIdentity& identity) const;
};

class Policy {
 public:
  struct Rule {
    PeerPattern peers;
    std::vector<std::string> tenants;  // "*": any
    bool is_operator = false;
    bool is_member = false;
    int line = 0;  // in the file, from 1
  };
  struct Tenant {
    std::optional<uint64_t> sessions_max;
    bool ucx = false;
  };
  struct Parts {
    std::string name;  // name of the file, for errors
    std::vector<Rule> identities, deny;
    std::map<std::string, Tenant, std::less<>> tenants;  // "*": tenants without an entry
  };

  // Parses the text of an untrusted file. Errors: InvalidArgument, with "NAME:LINE: FIELD: …".
  static absl::StatusOr<Policy> Parse(std::string_view text, std::string name);
  explicit Policy(Parts parts) : parts_(std::move(parts)) {}

  // Errors: PermissionDenied, with the reason.
  absl::Status MayUse(const PeerIdentity& identity, std::string_view tenant) const;
  absl::Status MayOperate(const PeerIdentity& identity) const;
  // Returns OK if the peer may be a member of the cluster. A member acts for every tenant.
  absl::Status MayBeMember(const PeerIdentity& identity) const;
  // OK if a rule names the identity.
  absl::Status MayConnect(const PeerIdentity& identity) const;
  const Tenant& TenantOf(std::string_view tenant) const;
  // Returns true if peers may use different tenants.
  bool has_many_tenants() const;
  // The doors that rules name, with the first rule of each, in the order of the file: those of
  // `identities`, then those of `deny`.
  struct Door {
    std::string folder;
    std::string place;  // "policy.yaml:3"
  };
  std::vector<Door> doors() const;
  size_t rule_count() const { return parts_.identities.size(); }
  size_t deny_count() const { return parts_.deny.size(); }

 private:
  // Returns the first rule that matches the peer. Errors: PermissionDenied (the peer is denied, or
  // no rule matches).
  absl::StatusOr<const Rule*> RuleOf(const PeerIdentity& identity) const;
  std::string Place(const Rule& rule) const;  // "policy.yaml:3"

  Parts parts_;
};

}  // namespace cairn
