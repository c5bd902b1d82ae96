// SPDX-License-Identifier: Apache-2.0
#include "service/sessions.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "service/spaces.h"
#include "tests/support/metric_capture.h"
#include "tests/support/store_fixture.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

constexpr uint64_t kPeersMax = 512;

PeerIdentity User(uint32_t uid, std::string door = "") {
  return PeerIdentity(UnixPeer{.uid = uid, .gid = uid, .door = std::move(door)});
}

TEST(SessionsTest, OpensFindsEnds) {
  std::vector<uint64_t> released;
  std::vector<PeerRef> broken;
  Sessions sessions({.release_leases = [&](uint64_t id) { released.push_back(id); },
                     .break_peer = [&](const PeerRef& peer) { broken.push_back(peer); }},
                    kPeersMax);
  const auto a = sessions.Open("acme", "one");
  const auto b = sessions.Open("acme", "two");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->ticket, b->ticket);
  EXPECT_EQ(sessions.Find(a->ticket)->tenant.view(), "acme");
  ASSERT_TRUE(sessions.AttachPeer(a->id, {.server = 1, .lane = 2, .peer = 3}).ok());
  ASSERT_TRUE(sessions.AttachPeer(a->id, {.server = 1, .lane = 2, .peer = 4}).ok());
  sessions.DetachPeer(a->id, {.server = 1, .lane = 2, .peer = 3});
  sessions.End(a->id);
  sessions.End(a->id);
  EXPECT_EQ(broken, (std::vector<PeerRef>{{1, 2, 4}}));
  EXPECT_EQ(released, std::vector<uint64_t>{a->id});
  EXPECT_TRUE(absl::IsNotFound(sessions.Find(a->ticket).status()));
  EXPECT_TRUE(sessions.Find(b->ticket).ok());
  EXPECT_FALSE(sessions.AttachPeer(a->id, {}).ok());
  EXPECT_FALSE(sessions.BeginPut(a->id, 1).ok());
  EXPECT_EQ(sessions.count(), 1u);
}

TEST(SessionsTest, WhoDrainsBlamesNobody) {
  Sessions sessions({.release_leases = [](uint64_t) {}, .break_peer = [](const PeerRef&) {}},
                    kPeersMax);
  const auto a = sessions.Open("acme", "one");
  const auto b = sessions.Open("acme", "two");
  ASSERT_TRUE(a.ok() && b.ok());
  sessions.End(a->id);
  EXPECT_TRUE(absl::IsNotFound(sessions.Find(a->ticket).status()));
  sessions.RefuseNew();
  EXPECT_TRUE(absl::IsUnavailable(sessions.Find(a->ticket).status()));
  EXPECT_TRUE(sessions.Find(b->ticket).ok());
}

TEST(SessionsTest, AnIdentityIsOnlyTheTenantsThatThePolicySays) {
  class OwnTenant final : public TenantPolicy {
   public:
    absl::Status MayUse(const PeerIdentity& identity, std::string_view tenant) const override {
      const UnixPeer* user = identity.unix_peer();
      const bool may = !is_revoked && user != nullptr && tenant == absl::StrCat("uid-", user->uid);
      return may ? absl::OkStatus() : absl::PermissionDeniedError("tenant: not this one");
    }
    absl::Status MayUseUcx(std::string_view) const override {
      return ucx ? absl::OkStatus() : absl::PermissionDeniedError("ucx: not this tenant");
    }
    std::optional<uint64_t> SessionsMax(std::string_view) const override { return 2; }
    absl::Status MayOperate(const PeerIdentity&) const override { return absl::OkStatus(); }
    absl::Status MayConnect(const PeerIdentity&) const override { return absl::OkStatus(); }
    absl::Status MayBeMember(const PeerIdentity&) const override { return absl::OkStatus(); }
    bool ucx = false, is_revoked = false;
  };
  OwnTenant policy;
  Sessions sessions({.release_leases = [](uint64_t) {}, .break_peer = [](const PeerRef&) {}},
                    kPeersMax);
  sessions.SetPolicy(policy);
  const PeerIdentity own = User(7), other = User(8);
  const auto session = sessions.Open("uid-7", "", own);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_TRUE(absl::IsPermissionDenied(sessions.Open("uid-7", "", other).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(sessions.Open("uid-7", "").status()));
  EXPECT_TRUE(sessions.AttachPeer(session->id, {.peer = 1}, &own).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(sessions.AttachPeer(session->id, {.peer = 2}, &other)));
  EXPECT_EQ(sessions.AttachPeer(session->id, {.peer = 3}).message(), "ucx: not this tenant");
  policy.ucx = true;
  EXPECT_TRUE(sessions.AttachPeer(session->id, {.peer = 3}).ok());
  EXPECT_TRUE(sessions.Open("uid-7", "", own).ok());
  EXPECT_EQ(sessions.Open("uid-7", "", own).status(),
            absl::ResourceExhaustedError("sessions: the policy allows the tenant 2"));
  EXPECT_TRUE(sessions.Open("uid-8", "", other).ok());
  EXPECT_TRUE(sessions.EndRefused().empty());
  policy.is_revoked = true;
  EXPECT_EQ(sessions.EndRefused().size(), 3u);
  EXPECT_EQ(sessions.count(), 0u);
}

TEST(SessionsTest, ATicketIsOfNoUseToAnotherPeer) {
  Sessions sessions({.release_leases = [](uint64_t) {}, .break_peer = [](const PeerRef&) {}},
                    kPeersMax);
  const auto holder = [](std::string serial) {
    return PeerIdentity(CertificatePeer{.uri = "spiffe://prod/a",
                                        .dns = {},
                                        .trust_domain = "prod",
                                        .serial = std::move(serial),
                                        .root = {}});
  };
  const PeerIdentity user = User(7), by_door = User(7, "/run/cairn/a"), nobody;
  for (const PeerIdentity& opener : {user, by_door, holder("1"), nobody}) {
    const auto session = sessions.Open("acme", "", opener);
    ASSERT_TRUE(session.ok()) << session.status();
    for (const PeerIdentity& bearer : {user, User(8), by_door, holder("1"), nobody}) {
      const bool is_same = opener == bearer;
      const absl::Status call = sessions.CheckBearer(session->ticket, bearer);
      EXPECT_EQ(call.ok(), is_same) << opener.ToString() << " " << bearer.ToString();
      const absl::Status data = sessions.AttachPeer(session->id, {.peer = 1}, &bearer);
      EXPECT_EQ(data.ok(), is_same || !opener.is_known())
          << opener.ToString() << " " << bearer.ToString();
      EXPECT_EQ(call.message(), is_same ? "" : "ticket: another peer opened its session");
      sessions.DetachPeer(session->id, {.peer = 1});
    }
    EXPECT_TRUE(sessions.AttachPeer(session->id, {.peer = 2}).ok()) << "UCX knows no peers";
    sessions.End(session->id);
    EXPECT_TRUE(absl::IsNotFound(sessions.CheckBearer(session->ticket, opener)));
  }
  const auto session = sessions.Open("acme", "", holder("1"));
  EXPECT_TRUE(sessions.CheckBearer(session->ticket, holder("2")).ok()) << "it was renewed";
}

TEST(SessionsTest, FloodIsRefusedAndOthersStay) {
  Sessions sessions({.release_leases = [](uint64_t) {}, .break_peer = [](const PeerRef&) {}},
                    kPeersMax);
  size_t opened = 0;
  uint64_t last = 0;
  for (size_t i = 0; i < limits::kSessionsMax / 2 + 10; ++i) {
    const auto session = sessions.Open("flood", "");
    opened += session.ok() ? 1 : 0;
    last = session.ok() ? session->id : last;
    ASSERT_TRUE(session.ok() || absl::IsResourceExhausted(session.status()));
  }
  EXPECT_EQ(opened, limits::kSessionsMax / 2);
  EXPECT_TRUE(sessions.Open("other", "").ok());
  sessions.End(last);
  EXPECT_TRUE(sessions.Open("flood", "").ok());
}

TEST(SessionsTest, ConnectionsOfATenantAreBoundedOverItsSessions) {
  Sessions sessions({.release_leases = [](uint64_t) {}, .break_peer = [](const PeerRef&) {}},
                    /*peers_max=*/8);
  const uint64_t one = sessions.Open("flood", "")->id, two = sessions.Open("flood", "")->id;
  const uint64_t other = sessions.Open("other", "")->id;
  for (transport::PeerId peer = 1; peer <= 4; ++peer) {
    ASSERT_TRUE(sessions.AttachPeer(peer <= 2 ? one : two, {.peer = peer}).ok());
  }
  const absl::Status refused = sessions.AttachPeer(two, {.peer = 5});
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(),
            "connections: the tenant holds 4 and asks for 1 more: over its share of 8");
  EXPECT_TRUE(sessions.AttachPeer(other, {.peer = 6}).ok());
  sessions.End(one);
  EXPECT_TRUE(sessions.AttachPeer(two, {.peer = 5}).ok()) << "its session gave two back";
  sessions.DetachPeer(two, {.peer = 5});
  EXPECT_TRUE(sessions.AttachPeer(two, {.peer = 7}).ok());
  MetricCapture metrics;
  sessions.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_limit_refusals_total{limit=\"connections\"}"), 1);
}

// The end of a session waits for a publish of it, and for nothing else: who asks for a session does
// not wait for the index.
TEST(SessionsTest, TheEndWaitsForWhatRunsAndNobodyElseDoes) {
  std::atomic<bool> is_released{false};
  Sessions sessions({.release_leases = [&](uint64_t) { is_released = true; },
                     .break_peer = [](const PeerRef&) {}},
                    kPeersMax);
  const Sessions::Opened opened = *sessions.Open("acme", "");
  auto put = sessions.BeginPut(opened.id, 1000);
  ASSERT_TRUE(put.ok());
  absl::Notification runs, goes_on;
  std::thread publisher([&] {
    EXPECT_TRUE(sessions
                    .IfOpen(opened.id,
                            [&] {
                              runs.Notify();
                              goes_on.WaitForNotification();
                              return absl::OkStatus();
                            })
                    .ok());
  });
  runs.WaitForNotification();
  EXPECT_TRUE(sessions.IsOpen(opened.id));
  EXPECT_TRUE(sessions.Find(opened.ticket).ok());
  EXPECT_TRUE(sessions.IfOpen(opened.id, [] { return absl::OkStatus(); }).ok());
  std::thread ender([&] { sessions.End(opened.id); });
  EXPECT_TRUE(WaitFor([&] { return !sessions.IsOpen(opened.id); }));
  EXPECT_TRUE(absl::IsUnavailable(sessions.IfOpen(opened.id, [] { return absl::OkStatus(); })));
  EXPECT_FALSE(is_released) << "something of it may still appear";
  goes_on.Notify();
  publisher.join();
  put->Reset();  // before or after the end has seen that the publish is over
  ender.join();
  EXPECT_TRUE(is_released);
  EXPECT_EQ(sessions.quarantine_bytes(), 0u);
}

TEST(SessionsTest, NamesAreChecked) {
  Sessions sessions({.release_leases = [](uint64_t) {}, .break_peer = [](const PeerRef&) {}},
                    kPeersMax);
  for (const std::string& tenant : {std::string(), std::string("a b"), std::string("a/b"),
                                    std::string(65, 'a'), std::string("a\0b", 3)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(sessions.Open(tenant, "").status()));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(sessions.Open("a", std::string(129, 'x')).status()));
  EXPECT_TRUE(sessions.Open(std::string(64, 'a'), std::string(128, 'x')).ok());
  sessions.RefuseNew();
  EXPECT_TRUE(absl::IsUnavailable(sessions.Open("a", "").status()));
}

TEST(SessionsTest, PutsInFlightAreBounded) {
  Sessions sessions({.release_leases = [](uint64_t) {}, .break_peer = [](const PeerRef&) {}},
                    kPeersMax);
  const uint64_t id = sessions.Open("acme", "")->id;
  std::vector<Sessions::InFlightPut> puts;
  for (size_t i = 0; i < limits::kPutsPerSessionMax; ++i) {
    auto put = sessions.BeginPut(id, 1000);
    ASSERT_TRUE(put.ok());
    puts.push_back(*std::move(put));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(sessions.BeginPut(id, 1).status()));
  puts.pop_back();
  EXPECT_TRUE(
      absl::IsResourceExhausted(sessions.BeginPut(id, limits::kPutBytesPerSessionMax).status()));
  EXPECT_EQ(sessions.in_flight_bytes(), 63'000u);
  sessions.End(id);
  EXPECT_EQ(sessions.quarantine_bytes(), 63'000u);
  puts.clear();
  EXPECT_EQ(sessions.quarantine_bytes(), 0u);
}

TEST(OpenSpaceTest, OneSpecificationIsOneSpace) {
  StoreFixture store;
  const auto identity = StoreFixture::Identity();
  const auto first = store.spaces.Open(identity, "kivi:4", "acme");
  ASSERT_TRUE(first.ok() && first->is_created);
  const auto second = store.spaces.Open(identity, "kivi:2", "acme");
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(second->is_created);
  EXPECT_EQ(second->space->id(), first->space->id());
  EXPECT_EQ(codecs::FormatRecipe(second->space->recipe()), "kivi:4") << "keeps its policy";
  auto changed = identity;
  changed.weights_revision = "2";
  const auto third = store.spaces.Open(changed, "", "acme");
  EXPECT_NE(third->space->id(), first->space->id());
  EXPECT_TRUE(absl::IsPermissionDenied(store.spaces.Open(identity, "", "rival").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store.spaces.Open(identity, "zip", "acme").status()));
  EXPECT_EQ(store.spaces.Find(first->space->id(), "rival").status(),
            store.spaces.Find(77, "rival").status());
  EXPECT_TRUE(absl::IsNotFound(store.spaces.Find(0, "acme").status()));
  EXPECT_TRUE(absl::IsNotFound(store.spaces.Find(77, "acme").status()));
  ASSERT_TRUE(store.SetRecipe(*first->space, "kivi:2+").ok());
  EXPECT_EQ(codecs::FormatRecipe(first->space->recipe()), "kivi:2+");
  EXPECT_EQ(store.spaces.List().size(), 2u);
}

TEST(OpenSpaceTest, WantFillsInAndRefuses) {
  StoreFixture store;
  SpaceEntry& space = store.OpenSpace();
  using Asks = std::vector<SpaceEntry::Ask>;
  using Skips = std::vector<uint32_t>;
  EXPECT_EQ(space.Want({}, {})->at(0).slice, (codecs::Slice{0, 2, 0, 4}));
  EXPECT_EQ(space.Want(Asks{{.group = 0, .layer_first = 1, .head_first = 2}}, {})->at(0).slice,
            (codecs::Slice{1, 1, 2, 2}));
  EXPECT_FALSE(space.Want(Asks{{.group = 1}}, {}).ok());
  EXPECT_FALSE(space.Want(Asks{{.group = 0}, {.group = 0}}, {}).ok());
  EXPECT_FALSE(space.Want(Asks{{.group = 0, .layer_first = 2}}, {}).ok());
  EXPECT_FALSE(space.Want(Asks{{.group = 0, .head_first = 1, .head_count = 4}}, {}).ok());
  EXPECT_FALSE(space.Want({}, Skips{0}).ok());
  EXPECT_FALSE(space.Want({}, Skips{3}).ok());
}

}  // namespace
}  // namespace cairn
