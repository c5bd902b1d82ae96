// SPDX-License-Identifier: Apache-2.0
#include "service/policy/policy.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/text.h"

namespace cairn {
namespace {

// Returns true if each part of `name` equals that part of `pattern`, or the pattern's part is `*`.
bool MatchesParts(std::string_view pattern, std::string_view name, char separator) {
  const std::vector<absl::string_view> patterns = absl::StrSplit(ToAbsl(pattern), separator);
  const std::vector<absl::string_view> parts = absl::StrSplit(ToAbsl(name), separator);
  return std::ranges::equal(patterns, parts, [](absl::string_view a, absl::string_view b) {
    return a == b || (a == "*" && !b.empty());
  });
}

}  // namespace

bool PeerPattern::Matches(const PeerIdentity& identity) const {
  if (const UnixPeer* user = identity.unix_peer()) {
    if (!door.empty()) return user->door == door;
    return uid.has_value() && user->uid == *uid && *uid != kUnmappedUid &&
           (is_uid_of_doors || user->door.empty());
  }
  const CertificatePeer* holder = identity.certificate();
  if (holder == nullptr) return false;
  if (!serial.empty()) return holder->serial == serial;
  if (!uri.empty()) return !holder->uri.empty() && MatchesParts(uri, holder->uri, '/');
  return !dns.empty() && std::ranges::any_of(holder->dns, [this](const std::string& name) {
    return MatchesParts(dns, name, '.');
  });
}

std::string Policy::Place(const Rule& rule) const {
  return absl::StrCat(parts_.name, ":", rule.line);
}

absl::StatusOr<const Policy::Rule*> Policy::RuleOf(const PeerIdentity& identity) const {
  const auto names = [&identity](const Rule& rule) { return rule.peers.Matches(identity); };
  if (const auto denied = std::ranges::find_if(parts_.deny, names); denied != parts_.deny.end()) {
    return absl::PermissionDeniedError(
        absl::StrCat("peer: ", identity.ToString(), " is denied (", Place(*denied), ")"));
  }
  const auto rule = std::ranges::find_if(parts_.identities, names);
  if (rule != parts_.identities.end()) return &*rule;
  if (!identity.is_known()) {
    return absl::PermissionDeniedError(
        absl::StrCat("peer: a connection without TLS is nobody to the policy (", parts_.name,
                     "): connect with a certificate, or by a unix socket of the daemon"));
  }
  return absl::PermissionDeniedError(
      absl::StrCat("peer: ", identity.ToString(), " is in no rule of ", parts_.name));
}

absl::Status Policy::MayUse(const PeerIdentity& identity, std::string_view tenant) const {
  CAIRN_ASSIGN_OR_RETURN(const Rule* rule, RuleOf(identity));
  const bool may = std::ranges::any_of(
      rule->tenants, [tenant](const std::string& one) { return one == "*" || one == tenant; });
  if (may) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "tenant: '", ToAbsl(tenant), "' is ",
      rule->tenants.empty() ? "not allowed: the rule has no tenants"
                            : absl::StrCat("none of ", absl::StrJoin(rule->tenants, ", ")),
      " (", Place(*rule), ")"));
}

absl::Status Policy::MayOperate(const PeerIdentity& identity) const {
  CAIRN_ASSIGN_OR_RETURN(const Rule* rule, RuleOf(identity));
  if (rule->is_operator) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("peer: ", identity.ToString(), " is no operator (", Place(*rule), ")"));
}

absl::Status Policy::MayBeMember(const PeerIdentity& identity) const {
  CAIRN_ASSIGN_OR_RETURN(const Rule* rule, RuleOf(identity));
  if (rule->is_member) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("peer: ", identity.ToString(),
                                                  " is no member of the cluster: its rule has no "
                                                  "peer: true (",
                                                  Place(*rule), ")"));
}

absl::Status Policy::MayConnect(const PeerIdentity& identity) const {
  return RuleOf(identity).status();
}

const Policy::Tenant& Policy::TenantOf(std::string_view tenant) const {
  static const Tenant kNone;
  auto found = parts_.tenants.find(tenant);
  if (found == parts_.tenants.end()) found = parts_.tenants.find("*");
  return found == parts_.tenants.end() ? kNone : found->second;
}

std::vector<Policy::Door> Policy::doors() const {
  std::vector<Door> doors;
  for (const std::vector<Rule>* rules : {&parts_.identities, &parts_.deny}) {
    for (const Rule& rule : *rules) {
      const std::string& folder = rule.peers.door;
      if (folder.empty() || std::ranges::find(doors, folder, &Door::folder) != doors.end())
        continue;
      doors.push_back({.folder = folder, .place = Place(rule)});
    }
  }
  return doors;
}

bool Policy::has_many_tenants() const {
  std::set<std::string_view> names;
  for (const Rule& rule : parts_.identities) {
    names.insert(rule.tenants.begin(), rule.tenants.end());
  }
  return names.size() > 1 || names.contains("*");
}

}  // namespace cairn
