// SPDX-License-Identifier: Apache-2.0
// How spaces begin and end, and what is theirs with them.
#include "service/spaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/metric_capture.h"
#include "tests/support/side_object_bytes.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kIdle = absl::Milliseconds(limits::kSpaceIdleMs);

class SpacesTest : public testing::Test {
 protected:
  // The session keeps it, as OpenSpace() of the control API does. Returns its number.
  uint64_t Open(const Session& session, std::string_view model = "model") {
    auto identity = StoreFixture::Identity(session.tenant.view());
    identity.model = std::string(model);
    auto opened = store_.spaces.Open(identity, "raw", session.tenant.view());
    CAIRN_CHECK_OK(opened);
    const uint64_t id = opened->space->id();
    CAIRN_CHECK_OK(store_.sessions.Keep(session.id, std::move(opened->space)));
    return id;
  }
  absl::Status TryOpen(std::string_view tenant, std::string_view model) {
    auto identity = StoreFixture::Identity(tenant);
    identity.model = std::string(model);
    return store_.spaces.Open(identity, "raw", tenant).status();
  }
  bool IsThere(uint64_t id) { return store_.spaces.Find(id).ok(); }
  // Upkeep runs now, and again once the idle time is over.
  void PassIdle() {
    store_.upkeep->RunOnce();
    store_.clock.Advance(kIdle);
    store_.upkeep->RunOnce();
  }
  double Metric(const std::string& series) {
    MetricCapture metrics;
    store_.spaces.Report(metrics);
    return metrics.Value(series);
  }
  StoreFixture store_;
};

TEST_F(SpacesTest, NumbersAreRandomAndNamesOfRetiredSpacesGetNewOnes) {
  const uint64_t first = Open(store_.session, "a"), second = Open(store_.session, "b");
  EXPECT_NE(first, 0u);
  EXPECT_GT(std::max(first, second) - std::min(first, second), 1u << 20) << "not counted up";
  EXPECT_EQ(Open(store_.session, "a"), first);
  store_.sessions.End(store_.session.id);
  PassIdle();
  const absl::Status status = store_.spaces.Find(first, "acme").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(Metric("cairn_spaces"), 0);
  EXPECT_EQ(Metric("cairn_spaces_retired_total"), 2);
  store_.session = store_.OpenSession("acme");
  EXPECT_NE(Open(store_.session, "a"), first);
}

TEST_F(SpacesTest, SessionsKeepTheirs) {
  const Session other = store_.OpenSession("acme");
  const uint64_t id = Open(store_.session);
  EXPECT_EQ(Open(other), id);
  store_.sessions.End(store_.session.id);
  PassIdle();
  EXPECT_TRUE(IsThere(id));
  store_.sessions.End(other.id);
  store_.clock.Advance(kIdle - absl::Seconds(1));
  store_.upkeep->RunOnce();
  EXPECT_TRUE(IsThere(id)) << "a session may come back";
  PassIdle();
  EXPECT_FALSE(IsThere(id));
  auto late = store_.spaces.Open(StoreFixture::Identity(), "raw", "acme");
  ASSERT_TRUE(late.ok());
  EXPECT_TRUE(absl::IsNotFound(store_.sessions.Keep(other.id, std::move(late->space))));
  PassIdle();
  EXPECT_EQ(Metric("cairn_spaces"), 0) << "a session that is over keeps nothing";
}

TEST_F(SpacesTest, BlocksKeepTheirs) {
  const uint64_t id = Open(store_.session);
  {
    const SpaceRef space = *store_.spaces.Find(id);
    ASSERT_TRUE(store_.PutSource(*space, StoreFixture::Key(1), StoreFixture::Whole(*space)).ok());
  }
  store_.sessions.End(store_.session.id);
  PassIdle();
  PassIdle();
  ASSERT_TRUE(IsThere(id));
  store_.session = store_.OpenSession("acme");
  EXPECT_EQ(Open(store_.session), id);
  {
    const SpaceRef space = *store_.spaces.Find(id);
    EXPECT_TRUE(store_.RunGet(*space, StoreFixture::Key(1), StoreFixture::Whole(*space)).ok());
  }
  store_.sessions.End(store_.session.id);
  EXPECT_EQ(store_.index->Invalidate(id), 1u);
  PassIdle();
  EXPECT_FALSE(IsThere(id));
}

TEST_F(SpacesTest, CallsKeepTheirs) {
  const uint64_t id = Open(store_.session);
  SpaceRef mine = *store_.spaces.Find(id);
  const auto whole = StoreFixture::Whole(*mine);
  const auto source = StoreFixture::Source(*mine, StoreFixture::Key(1), 0, whole);
  const auto frame = StoreFixture::PutFrame(*mine, StoreFixture::Key(1), whole, source);
  auto put = store_.AdmitPut(frame);
  ASSERT_TRUE(put.ok()) << put.status();
  mine.Reset();
  store_.sessions.End(store_.session.id);
  PassIdle();
  EXPECT_TRUE(IsThere(id)) << "the put is not over";
  put->reset();
  PassIdle();
  EXPECT_FALSE(IsThere(id));
}

TEST_F(SpacesTest, SideObjectsAndSquaresGoWithTheSpace) {
  const uint64_t id = Open(store_.session);
  {
    const SpaceRef space = *store_.spaces.Find(id);
    ASSERT_TRUE(space->coding().SetPolicy(*store_.spaces.PolicyOf("cairn:2.3", "", 0)).ok());
    const auto installed = space->coding().Install(
        0, proto::SideObjectKind::kProfile,
        SideObjectBytes(proto::SideObjectKind::kProfile, 1,
                        {.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 32}));
    ASSERT_TRUE(installed.ok()) << installed.status();
    const std::vector<float> squares(2 * 4 * 32, 1.0F);
    ASSERT_TRUE(space->coding().AddQuerySquares(0, StoreFixture::Whole(*space), squares, 16));
  }
  store_.sessions.End(store_.session.id);
  EXPECT_GT(store_.side_objects.bytes(), 0u);
  EXPECT_GT(store_.query_squares.bytes(), 0u);
  PassIdle();
  EXPECT_EQ(store_.side_objects.bytes(), 0u);
  EXPECT_EQ(store_.side_objects.count(), 0u);
  EXPECT_EQ(store_.query_squares.bytes(), 0u);
}

// What four names took for good, once.
TEST_F(SpacesTest, InventedTenantsLeaveRoomAndGiveBack) {
  std::vector<Session> flood;
  for (int i = 0; i < 4; ++i) {
    flood.push_back(store_.OpenSession(absl::StrCat("invented", i)));
    int opened = 0;
    while (TryOpen(flood.back().tenant.view(), absl::StrCat(opened)).ok()) {
      Open(flood.back(), absl::StrCat(opened++));
      ASSERT_LT(opened, 1024);
    }
  }
  const Session victim = store_.OpenSession("victim");
  for (int i = 0; i < 30; ++i) Open(victim, absl::StrCat("mine", i));
  for (const Session& session : flood) store_.sessions.End(session.id);
  for (int i = 30; i < 500; ++i) Open(victim, absl::StrCat("mine", i));
  EXPECT_GE(Metric("cairn_limit_refusals_total{limit=\"spaces\"}"), 4);
}

TEST_F(SpacesTest, IdleSpacesGiveWayAtOnceTheOldestFirst) {
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < limits::kSpacesMax / 2; ++i) {
    ids.push_back(Open(store_.session, absl::StrCat(i)));
  }
  const absl::Status full = TryOpen("acme", "more");
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("spaces: the tenant holds 512"));
  store_.sessions.End(store_.session.id);
  { const SpaceRef used = *store_.spaces.Find(ids[0]); }
  store_.clock.Advance(absl::Seconds(1));
  for (const uint64_t id : ids) {
    if (id != ids[7]) (void)store_.spaces.Find(id);  // idle since now
  }
  EXPECT_TRUE(TryOpen("acme", "more").ok());
  EXPECT_FALSE(IsThere(ids[7]));
  EXPECT_TRUE(IsThere(ids[0]));
}

TEST_F(SpacesTest, OpenUseAndRetireFromManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<bool> is_over{false};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string model = absl::StrCat((i + t) % 5);
        auto identity = StoreFixture::Identity();
        identity.model = model;
        auto opened = store_.spaces.Open(identity, "raw", "acme");
        ASSERT_TRUE(opened.ok()) << opened.status();
        const SpaceRef again = opened->space.Share();
        opened->space.Reset();
        EXPECT_EQ(again->identity().model, model);
        EXPECT_EQ(store_.spaces.Find(again->id())->Share()->id(), again->id());
      }
    });
  }
  std::thread upkeep([&] {
    while (!is_over) {
      store_.clock.Advance(kIdle);
      store_.spaces.RetireIdle();
      for (const SpaceRef& space : store_.spaces.List()) EXPECT_NE(space->id(), 0u);
    }
  });
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  upkeep.join();
  store_.clock.Advance(kIdle);
  store_.spaces.RetireIdle();
  EXPECT_EQ(Metric("cairn_spaces"), 0);
}

}  // namespace
}  // namespace cairn
