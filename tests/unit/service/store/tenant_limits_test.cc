// SPDX-License-Identifier: Apache-2.0
// What tenants may hold of the index: leases, their bytes, waiting calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/metric_capture.h"
#include "tests/support/store_fixture.h"
#include "tests/unit/service/store/chains.h"

namespace cairn {
namespace {

// The names of a flood take no more than they may, and give it all back with their sessions.
TEST(TenantLimitsTest, ManyTenantsLeaveRoomForOneMore) {
  StoreFixture store(64_MiB);
  auto identity = StoreFixture::Identity();
  identity.tokens_per_block = 1024;  // 1 MiB of source a block
  const auto lease_all = [&](const std::string& tenant, uint64_t count) {
    store.session = store.OpenSession(tenant);
    identity.tenant = tenant;
    const SpaceEntry& space = store.OpenSpace("raw", identity);
    const auto keys = store.PutChain(space, count);
    return store.index->Match(store.Query(space, keys, true))->blocks.size();
  };
  std::vector<Session> flood;
  for (int i = 0; i < 4; ++i) {
    EXPECT_GE(lease_all(absl::StrCat("invented", i), 10), 1u) << i;
    flood.push_back(store.session);
  }
  EXPECT_GE(lease_all("victim", 4), 1u);
  for (const Session& session : flood) store.sessions.End(session.id);
  EXPECT_EQ(lease_all("late", 8), 8u);
}

// What the tenant leases is counted as what it is given back for: Remove() checks it.
TEST(TenantLimitsTest, BytesOfAnImageThatIsEncodedWhileLeasedAreGivenBack) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("kivi:4");
  const auto whole = StoreFixture::Whole(space);
  const auto source = StoreFixture::Source(space, StoreFixture::Key(1), 0, whole);
  const auto frame = StoreFixture::PutFrame(space, StoreFixture::Key(1), whole, source);
  ASSERT_TRUE(store.RunPut(frame, source, store.session, /*keeps_raw=*/true).ok());
  const auto first = store.index->Match(store.Query(space, Keys(1), true));
  ASSERT_TRUE(first.ok() && first->lease.has_value());
  store.upkeep->RunOnce();
  ASSERT_EQ(store.index->pending_count(), 0u);
  const auto second = store.index->Match(store.Query(space, Keys(1), true));
  ASSERT_TRUE(second.ok() && second->lease.has_value());
  store.index->Release("acme", {*first->lease});
  store.index->Release("acme", {*second->lease});
  EXPECT_EQ(store.index->leased_bytes(), 0u);
  EXPECT_EQ(store.index->lease_count(), 0u);
}

TEST(TenantLimitsTest, WaitersOfATenantAreBoundedOverItsSessions) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  size_t waiting = 0, refused = 0;
  std::vector<Session> sessions;
  for (size_t i = 0; i < limits::kWaitersMax / 2 + 10; ++i) {
    if (i % limits::kWaitersPerSessionMax == 0) {
      sessions.push_back(store.session = store.OpenSession("acme"));
    }
    store.index->MatchWhenReady(store.Query(space, Keys(1)), store.clock.Now() + absl::Seconds(5),
                                [&](const absl::StatusOr<MatchAnswer>& result) {
                                  refused += absl::IsResourceExhausted(result.status()) ? 1 : 0;
                                });
    waiting = store.index->waiter_count();
  }
  EXPECT_EQ(waiting, limits::kWaitersMax / 2);
  EXPECT_EQ(refused, 10u);
  MetricCapture metrics;
  store.index->Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_limit_refusals_total{limit=\"waiters\"}"), 10);
  for (const Session& session : sessions) store.sessions.End(session.id);
  EXPECT_EQ(store.index->waiter_count(), 0u);
}

}  // namespace
}  // namespace cairn
