// SPDX-License-Identifier: Apache-2.0
// A host tier that is over-full, as its clients see it: what goes and in which order, what is
// refused and why, and that nothing grows.
#include "tests/fault/daemon/budget_fixture.h"

namespace cairn {
namespace {

class FullTest : public BudgetTest {};

TEST_F(FullTest, EvictionKeepsTheDaemonWithinItsBudgets) {
  Start(64);
  const Opened space = OpenSpace(ShapeOfMiB(4));
  for (uint64_t block = 1; block <= 100; ++block) {
    const absl::Status status = Put(space, block);
    ASSERT_TRUE(status.ok()) << block << ": " << status;
  }
  EXPECT_GT(daemon_->Metric("cairn_evictions_total"), 80);
}

// A chain that is longer than the tier keeps its beginning: nothing of it goes for what follows.
TEST_F(FullTest, ALongChainKeepsThePrefixThatFits) {
  Start(64);
  const Opened space = OpenSpace(ShapeOfMiB(4));
  for (uint64_t block = 1; block <= 30; ++block) {
    const absl::Status status = Put(space, block, block - 1);
    ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << block << ": " << status;
  }
  EXPECT_GE(Match(space, 1, 30, false).block_count(), 14u) << "of 16 that the tier has room for";
}

// The child goes before the parent, however recently it was used; what is left of the chain is a
// prefix and matches.
TEST_F(FullTest, ChainsLoseTheirLeavesFirst) {
  Start(16);
  const Opened space = OpenSpace(ShapeOfMiB(1));
  for (uint64_t block = 1; block <= 10; ++block) ASSERT_TRUE(Put(space, block, block - 1).ok());
  for (uint64_t block = 101; block <= 110; ++block) ASSERT_TRUE(Put(space, block).ok());
  ASSERT_TRUE(AwaitWatermark());
  const uint64_t left = Match(space, 1, 10, false).block_count();
  EXPECT_GE(left, 1u);
  EXPECT_LE(left, 6u);
  for (uint64_t block = 1; block <= 10; ++block) {
    EXPECT_EQ(Get(space, block).ok(), block <= left) << block << " of " << left;
  }
  for (uint64_t block = 101; block <= 110; ++block) {
    EXPECT_TRUE(Get(space, block).ok()) << block << ": used later than any of the chain";
  }
  // A leaf used just now does not save it from going before its parent.
  ASSERT_TRUE(Get(space, left).ok());
  for (uint64_t block = 101; block <= 110; ++block) ASSERT_TRUE(Get(space, block).ok());
  for (uint64_t block = 111; daemon_->Metric("cairn_blocks") > 0 && Get(space, left).ok();
       ++block) {
    ASSERT_LT(block, 200u);
    // The opaque ones are kept in use, so that the chain is the oldest.
    for (uint64_t used = 101; used < block; ++used) (void)Get(space, used);
    ASSERT_TRUE(Put(space, block).ok());
    ASSERT_TRUE(AwaitWatermark());  // else this put and upkeep may take one each
  }
  EXPECT_EQ(Match(space, 1, 10, false).block_count(), left - 1) << "and no parent went with it";
}

TEST_F(FullTest, KeysWithoutAChainGoLeastRecentlyUsedFirst) {
  Start(16);
  const Opened space = OpenSpace(ShapeOfMiB(1));
  for (uint64_t block = 1; block <= 13; ++block) ASSERT_TRUE(Put(space, block).ok());
  ASSERT_TRUE(Get(space, 1).ok());
  ASSERT_EQ(Match(space, 2, 2, false).block_count(), 1u);  // asking is using
  for (uint64_t block = 14; block <= 20; ++block) ASSERT_TRUE(Put(space, block).ok());
  ASSERT_TRUE(AwaitWatermark());
  std::vector<uint64_t> left;
  for (uint64_t block = 1; block <= 20; ++block) {
    if (Get(space, block).ok()) left.push_back(block);
  }
  ASSERT_GE(left.size(), 10u);
  EXPECT_EQ(left[0], 1u);
  EXPECT_EQ(left[1], 2u);
  for (size_t i = 2; i < left.size(); ++i) EXPECT_EQ(left[i], 20 - (left.size() - 1 - i));
}

TEST_F(FullTest, WhatIsLeftIsPinned) {
  Start(16);
  const Opened small = OpenSpace(ShapeOfMiB(3)), large = OpenSpace(ShapeOfMiB(14));
  ASSERT_TRUE(Put(small, 1).ok());
  const auto leased = Match(small, 1, 1, true);
  ASSERT_EQ(leased.block_count(), 1u);
  ExpectExhausted(Put(large, 1), "host tier: no room for 1");
  ExpectExhausted(Put(large, 1), "in its 16777216: ");
  ExpectExhausted(Put(large, 1), "all copies are pinned, in use or ancestors");
  EXPECT_TRUE(Get(small, 1).ok());
  EXPECT_EQ(client_->Release(leased.lease()), absl::OkStatus());
  EXPECT_TRUE(Put(large, 1).ok()) << "it is refused for as long as the lease lasts, no longer";
  EXPECT_TRUE(absl::IsNotFound(Get(small, 1)));
}

// So that puts are seldom refused: past its share of what leases may hold, half of the half of the
// tier where a tenant is alone, a Match is answered shorter, not refused.
TEST_F(FullTest, LeasesOfATenantHoldAtMostAQuarterOfTheTier) {
  Start(16);
  const Opened space = OpenSpace(ShapeOfMiB(1));
  for (uint64_t block = 1; block <= 12; ++block) ASSERT_TRUE(Put(space, block, block - 1).ok());
  const auto leased = Match(space, 1, 12, true);
  EXPECT_EQ(leased.block_count(), 3u) << "of 1 MiB and a sixteenth each";
  EXPECT_TRUE(leased.shortened_by_pins());
  EXPECT_LE(daemon_->Metric("cairn_tier_pinned_bytes"), 4.0 * kMiB);
  for (uint64_t block = 101; block <= 130; ++block) EXPECT_TRUE(Put(space, block).ok()) << block;
  EXPECT_EQ(Match(space, 1, 3, false).block_count(), 3u) << "a lease keeps what it names";
}

TEST_F(FullTest, TheIndexHasNoMoreBlocksThanItsLimit) {
  Start(16);
  const ToyShape tiny = {.model = "tiny", .layers = 1, .heads = 1, .dim = 8, .tokens = 16};
  const Opened space = OpenSpace(tiny);
  for (uint64_t block = 1; block <= 1500; ++block) ASSERT_TRUE(Put(space, block).ok()) << block;
  EXPECT_EQ(daemon_->Metric("cairn_blocks"), 1024) << "one for 16 KiB";
  // A page each, which is all but one page of what the tenant may lease; a put pins its parent.
  const auto leased = Match(space, 477, 1500, true);
  ASSERT_EQ(leased.block_count(), 1023u);
  ExpectExhausted(Put(space, 2, /*parent=*/1500),
                  "index: 1024 blocks are stored, and all are pinned");
  EXPECT_EQ(client_->Release(leased.lease()), absl::OkStatus());
  EXPECT_TRUE(Put(space, 2000).ok());
}

}  // namespace
}  // namespace cairn
