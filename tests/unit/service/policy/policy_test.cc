// SPDX-License-Identifier: Apache-2.0
#include "service/policy/policy.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cairn {
namespace {

constexpr std::string_view kText = R"(version: 1
identities:
  - {uri: "spiffe://prod.example/ns/team-a/sa/*", tenants: [team-a, shared-prompts]}
  - {dns: "engine-7.Team-B.example", tenants: [team-b]}
  - {dns: "*.team-c.example", tenants: [team-c]}
  - {uid: 64055, tenants: ["*"]}
  - {uid: 7, tenants: [team-d]}
  - {uri: "spiffe://prod.example/ns/ops/sa/cairnctl", operator: true}
deny:
  - {uri: "spiffe://prod.example/ns/team-a/sa/old"}
  - {serial: "0x003F41"}
tenants:
  team-a: {sessions: 2, ucx: true}
  "*": {sessions: 8}
)";

PeerIdentity Holder(std::string uri, std::vector<std::string> dns = {}, std::string serial = "1") {
  return PeerIdentity(CertificatePeer{.uri = std::move(uri),
                                      .dns = std::move(dns),
                                      .trust_domain = {},
                                      .serial = std::move(serial),
                                      .root = {}});
}
PeerIdentity User(uint32_t uid) { return PeerIdentity(UnixPeer{.uid = uid, .gid = 0, .door = {}}); }
Policy Parsed() {
  absl::StatusOr<Policy> policy = Policy::Parse(kText, "policy.yaml");
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}
std::string ErrorOf(std::string_view text) {
  const absl::StatusOr<Policy> policy = Policy::Parse(text, "p.yaml");
  EXPECT_TRUE(absl::IsInvalidArgument(policy.status())) << text;
  return std::string(policy.status().message());
}

// A pod chooses its uid, so the uid of a peer that came by a folder lets nobody in.
TEST(PolicyTest, WhoCameByADoorIsWhoTheDoorIs) {
  const absl::StatusOr<Policy> policy = Policy::Parse(R"(version: 1
identities:
  - {uid: 7, tenants: ["*"]}
  - {door: /run/cairn/a/, tenants: [team-a]}
deny: [{uid: 8}]
)",
                                                      "p.yaml");
  ASSERT_TRUE(policy.ok()) << policy.status();
  const auto by = [](uint32_t uid, std::string door) {
    return PeerIdentity(UnixPeer{.uid = uid, .gid = 0, .door = std::move(door)});
  };
  const auto may = [&](const PeerIdentity& peer, std::string_view tenant) {
    return std::string(policy->MayUse(peer, tenant).message());
  };
  EXPECT_EQ(may(by(7, ""), "team-b"), "");
  for (const uint32_t uid : {0u, 7u, kUnmappedUid}) {
    EXPECT_EQ(may(by(uid, "/run/cairn/a"), "team-a"), "") << uid;
    EXPECT_EQ(may(by(uid, "/run/cairn/a"), "team-b"),
              "tenant: 'team-b' is none of team-a (p.yaml:4)");
    EXPECT_EQ(may(by(uid, "/run/cairn/b"), "team-a"),
              absl::StrCat("peer: uid ", uid, " by /run/cairn/b is in no rule of p.yaml"));
  }
  EXPECT_EQ(may(by(1, ""), "team-a"), "peer: uid 1 is in no rule of p.yaml");
  EXPECT_EQ(may(by(8, "/run/cairn/a"), "team-a"),
            "peer: uid 8 by /run/cairn/a is denied (p.yaml:5)");
}

TEST(PolicyTest, TextThatIsNoDocumentEnds) {
  for (const std::string_view text : {",", ",:", "version: 1\n...\n,", "]", "}", "?", "--- ,"}) {
    EXPECT_EQ(ErrorOf(text).substr(0, 7), "p.yaml:") << text;
  }
}

TEST(PolicyTest, ItTellsTheDoorsThatItNames) {
  const absl::StatusOr<Policy> policy = Policy::Parse(R"(version: 1
deny: [{door: /c}]
identities:
  - {uid: 7, tenants: ["*"]}
  - {door: /a/, tenants: [team-a]}
  - {door: /a, tenants: [team-b]}
)",
                                                      "p.yaml");
  ASSERT_TRUE(policy.ok()) << policy.status();
  const std::vector<Policy::Door> doors = policy->doors();
  ASSERT_EQ(doors.size(), 2u);
  EXPECT_EQ(doors[0].folder + " " + doors[0].place, "/a p.yaml:5");
  EXPECT_EQ(doors[1].folder + " " + doors[1].place, "/c p.yaml:2");
  EXPECT_TRUE(Parsed().doors().empty());
}

TEST(PolicyTest, AnIdentityIsOnlyTheTenantsOfItsFirstRule) {
  const Policy policy = Parsed();
  struct Case {
    PeerIdentity peer;
    std::string tenant;
    std::string refusal;  // empty: allowed
  };
  const std::string a = "spiffe://prod.example/ns/team-a/sa/";
  const Case cases[] = {
      {Holder(a + "vllm"), "team-a", ""},
      {Holder(a + "vllm"), "shared-prompts", ""},
      {Holder(a + "vllm"), "team-b",
       "tenant: 'team-b' is none of team-a, shared-prompts (policy.yaml:3)"},
      {Holder(a), "team-a", "peer: " + a + " is in no rule of policy.yaml"},
      {Holder(a + "x/y"), "team-a", "peer: " + a + "x/y is in no rule of policy.yaml"},
      {Holder("spiffe://other.example/ns/team-a/sa/vllm"), "team-a",
       "peer: spiffe://other.example/ns/team-a/sa/vllm is in no rule of policy.yaml"},
      {Holder(a + "old"), "team-a", "peer: " + a + "old is denied (policy.yaml:10)"},
      {Holder(a + "vllm", {}, "3f41"), "team-a", "peer: " + a + "vllm is denied (policy.yaml:11)"},
      {Holder("", {"engine-7.team-b.example"}), "team-b", ""},
      {Holder("", {"other.example", "x.team-c.example"}), "team-c", ""},
      {Holder("", {"x.y.team-c.example"}), "team-c",
       "peer: x.y.team-c.example is in no rule of policy.yaml"},
      {Holder("", {"team-c.example"}), "team-c",
       "peer: team-c.example is in no rule of policy.yaml"},
      {User(64055), "anybody", ""},
      {User(7), "team-d", ""},
      {User(7), "team-a", "tenant: 'team-a' is none of team-d (policy.yaml:7)"},
      {User(1), "team-a", "peer: uid 1 is in no rule of policy.yaml"},
      {Holder("spiffe://prod.example/ns/ops/sa/cairnctl"), "team-a",
       "tenant: 'team-a' is not allowed: the rule has no tenants (policy.yaml:8)"},
      {PeerIdentity(), "team-a",
       "peer: a connection without TLS is nobody to the policy (policy.yaml): connect with a "
       "certificate, or by a unix socket of the daemon"},
  };
  for (const Case& one : cases) {
    const absl::Status status = policy.MayUse(one.peer, one.tenant);
    EXPECT_EQ(status.message(), one.refusal) << one.peer.ToString() << " " << one.tenant;
    EXPECT_EQ(status.ok(), one.refusal.empty());
    EXPECT_EQ(absl::IsPermissionDenied(status), !one.refusal.empty());
  }
}

TEST(PolicyTest, OperatorsAndLimits) {
  const Policy policy = Parsed();
  EXPECT_TRUE(policy.MayOperate(Holder("spiffe://prod.example/ns/ops/sa/cairnctl")).ok());
  EXPECT_EQ(policy.MayOperate(User(64055)).message(),
            "peer: uid 64055 is no operator (policy.yaml:6)");
  EXPECT_FALSE(policy.MayOperate(PeerIdentity()).ok());
  EXPECT_TRUE(policy.MayConnect(User(64055)).ok());
  EXPECT_FALSE(policy.MayConnect(User(2)).ok());
  EXPECT_EQ(policy.TenantOf("team-a").sessions_max, 2u);
  EXPECT_TRUE(policy.TenantOf("team-a").ucx);
  EXPECT_EQ(policy.TenantOf("team-b").sessions_max, 8u);
  EXPECT_FALSE(policy.TenantOf("team-b").ucx);
}

TEST(PolicyTest, OnlyAPeerWithTheRoleMayBeAMember) {
  const auto policy = Policy::Parse(
      "version: 1\n"
      "identities:\n"
      "  - {dns: \"*.cairn.example\", peer: true}\n"
      "  - {uid: 7, tenants: [a], peer: false}\n"
      "deny: [{serial: \"7\"}]\n",
      "p.yaml");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_TRUE(policy->MayBeMember(Holder("", {"node-1.cairn.example"})).ok());
  EXPECT_FALSE(policy->MayBeMember(Holder("", {"node-1.cairn.example"}, "7")).ok());
  EXPECT_EQ(policy->MayBeMember(User(7)).message(),
            "peer: uid 7 is no member of the cluster: its rule has no peer: true (p.yaml:4)");
  EXPECT_TRUE(absl::IsPermissionDenied(policy->MayBeMember(PeerIdentity())));
  // The role is no tenant's and no operator's.
  EXPECT_FALSE(policy->MayUse(Holder("", {"node-1.cairn.example"}), "a").ok());
  EXPECT_FALSE(policy->MayOperate(Holder("", {"node-1.cairn.example"})).ok());
  EXPECT_FALSE(policy->has_many_tenants());
}

TEST(PolicyTest, KnowsWhetherTenantsAreToBeKeptApart) {
  const auto many = [](std::string_view rules) {
    const auto policy = Policy::Parse(absl::StrCat("version: 1\nidentities: ", ToAbsl(rules)), "p");
    EXPECT_TRUE(policy.ok()) << policy.status();
    return policy->has_many_tenants();
  };
  EXPECT_FALSE(many("[]"));
  EXPECT_FALSE(many("[{uid: 1, tenants: [a]}, {uid: 2, tenants: [a]}]"));
  EXPECT_TRUE(many("[{uid: 1, tenants: [a]}, {uid: 2, tenants: [b]}]"));
  EXPECT_TRUE(many("[{uid: 1, tenants: ['*']}]"));
}

TEST(PolicyTest, AnErrorNamesTheLineAndTheField) {
  const auto of = [](std::string_view rest) {
    return ErrorOf(absl::StrCat("version: 1\n", ToAbsl(rest)));
  };
  EXPECT_EQ(ErrorOf(""), "p.yaml:1: expected one YAML document");
  EXPECT_EQ(ErrorOf("identities: []"), "p.yaml:1: version: missing; this daemon knows version 1");
  EXPECT_EQ(ErrorOf("version: 2"), "p.yaml:1: version: this daemon knows version 1");
  EXPECT_EQ(of("rules: []"),
            "p.yaml:2: 'rules' is unknown; takes version, identities, deny, tenants");
  // A line of a private key, as where the wrong file was named.
  const std::string line(64, 'M');
  EXPECT_EQ(of(line + ": 1"),
            "p.yaml:2: a name of 64 bytes is unknown; takes version, identities, deny, tenants");
  EXPECT_EQ(of("deny:\n  - {" + line + ": 1}"), "p.yaml:3: deny.a name of 64 bytes is unknown");
  EXPECT_EQ(of("tenants: {" + line + ": 1}"),
            "p.yaml:2: tenants.a name of 64 bytes: expected NAME: VALUE");
  EXPECT_EQ(of("deny: []\ndeny: []"), "p.yaml:3: the file: 'deny' is given twice");
  EXPECT_EQ(of("identities: 7"), "p.yaml:2: identities: expected a list of rules");
  EXPECT_EQ(of("identities:\n  - {tenants: [a]}"),
            "p.yaml:3: identities: a rule has exactly one of uri, dns, uid, door");
  EXPECT_EQ(of("identities:\n  - {uid: 1, dns: a, tenants: [a]}"),
            "p.yaml:3: identities: a rule has exactly one of uri, dns, uid, door");
  EXPECT_EQ(of("identities:\n  - {door: a, tenants: [a]}"),
            "p.yaml:3: identities.door: expected the absolute path of a folder of --door");
  EXPECT_EQ(of("identities:\n  - {door: /a, operator: true}"),
            "p.yaml:3: identities: operators do not come by a door; see --admin");
  EXPECT_EQ(of("identities:\n  - {uid: 1}"),
            "p.yaml:3: identities: a rule has one or more of tenants, operator: true, peer: true");
  EXPECT_EQ(of("identities:\n  - {uid: 1, tenants: []}"),
            "p.yaml:3: identities.tenants: expected a list of names, such as [team-a]");
  EXPECT_EQ(of("identities:\n  - {uid: 1, tenants: [a/b]}"),
            "p.yaml:3: identities.tenants: 'a/b': a tenant has 1 to 64 characters of "
            "[A-Za-z0-9._-], or is \"*\"");
  EXPECT_EQ(of("identities:\n  - {uid: -1, tenants: [a]}"),
            "p.yaml:3: identities.uid: expected the number of a user");
  EXPECT_EQ(of("identities:\n  - {uid: 65534, tenants: [a]}"),
            "p.yaml:3: identities.uid: 65534 is every user of another user namespace");
  EXPECT_EQ(of("identities:\n  - {uri: 'spiffe://a/x*', tenants: [a]}"),
            "p.yaml:3: identities.uri: expected SCHEME://NAME/…, with `*` only as a whole segment");
  EXPECT_EQ(of("identities:\n  - {dns: 'a*.example', tenants: [a]}"),
            "p.yaml:3: identities.dns: `*` only stands for a whole label");
  EXPECT_EQ(of("identities:\n  - {serial: '1', tenants: [a]}"),
            "p.yaml:3: identities.serial: only deny takes a serial");
  EXPECT_EQ(of("identities:\n  - {uid: 1, operator: yes}"),
            "p.yaml:3: identities.operator: expected true or false");
  EXPECT_EQ(of("identities:\n  - {uid: 1, peer: 1}"),
            "p.yaml:3: identities.peer: expected true or false");
  EXPECT_EQ(of("deny:\n  - {uid: 1, peer: true}"), "p.yaml:3: deny.peer is unknown");
  EXPECT_EQ(of("deny:\n  - {serial: xyz}"),
            "p.yaml:3: deny.serial: expected 1 to 40 hexadecimal digits");
  EXPECT_EQ(of("tenants:\n  a: {weight: 2}"),
            "p.yaml:3: tenants.a.weight: this daemon does not enforce it; takes sessions, ucx");
  EXPECT_EQ(of("tenants:\n  a:\n    host: {max: 1GiB}"),
            "p.yaml:4: tenants.a.host: this daemon does not enforce it; takes sessions, ucx");
  EXPECT_EQ(of("tenants:\n  a: {session: 2}"),
            "p.yaml:3: tenants.a: 'session' is unknown; takes sessions, ucx");
  EXPECT_EQ(of("tenants:\n  a: {sessions: many}"),
            "p.yaml:3: tenants.a.sessions: expected a number from 0 to 1000000");
}

TEST(PolicyTest, HasLimits) {
  std::string rules, names, tenants;
  for (int i = 0; i <= 1024; ++i) absl::StrAppend(&rules, "  - {uid: ", i, ", tenants: [a]}\n");
  EXPECT_EQ(ErrorOf(absl::StrCat("version: 1\nidentities:\n", rules)),
            "p.yaml:3: identities: 1025 rules, at most 1024");
  for (int i = 0; i <= 64; ++i) absl::StrAppend(&tenants, "  t", i, ": {}\n");
  EXPECT_EQ(ErrorOf(absl::StrCat("version: 1\ntenants:\n", tenants)),
            "p.yaml:3: tenants: 65 names, at most 64");
  for (int i = 0; i <= 64; ++i) absl::StrAppend(&names, "a", i, ", ");
  EXPECT_EQ(ErrorOf(absl::StrCat("version: 1\nidentities:\n  - {uid: 1, tenants: [", names, "a]}")),
            "p.yaml:3: identities.tenants: 66 names, at most 64");
  EXPECT_EQ(ErrorOf(std::string(kPolicyBytesMax + 1, '#')),
            "p.yaml:1: the file is larger than 1 MiB");
  EXPECT_EQ(ErrorOf(std::string("version: 1\n\0", 12)), "p.yaml:1: the file has a zero byte");
}

// Every prefix and every changed byte is a policy or an error.
TEST(PolicyTest, DamagedTextIsRefusedOrAPolicy) {
  for (size_t i = 0; i <= kText.size(); ++i) {
    static_cast<void>(Policy::Parse(kText.substr(0, i), "p"));
    if (i == kText.size()) break;
    for (const char byte : {'\0', '{', '[', '*', '&', '"', '\n', '\x80'}) {
      std::string text(kText);
      text[i] = byte;
      static_cast<void>(Policy::Parse(text, "p"));
    }
  }
}

}  // namespace
}  // namespace cairn
