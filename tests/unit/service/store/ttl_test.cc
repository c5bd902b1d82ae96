// SPDX-License-Identifier: Apache-2.0
// Blocks of a space whose policy gives them a time: after it they are gone, in every tier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/lasting_store.h"
#include "tests/support/metric_capture.h"

namespace cairn {
namespace {

class TtlTest : public testing::Test {
 protected:
  static void SetTtl(LastingStore& store, SpaceEntry& space, uint32_t seconds) {
    ASSERT_TRUE(space.coding().SetPolicy(*store.spaces.PolicyOf("raw", "", seconds)).ok());
  }
  size_t Matched(const std::vector<proto::BlockKey>& keys) {
    const auto match = store_.index->Match(store_.Query(space_, keys));
    CAIRN_CHECK_OK(match);
    return match->blocks.size();
  }
  absl::Status Get(const proto::BlockKey& key) {
    return store_.RunGet(space_, key, StoreFixture::Whole(space_)).status();
  }
  double Metric(const std::string& series) {
    MetricCapture metrics;
    store_.index->Report(metrics);
    return metrics.Value(series);
  }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  LastingStore store_{disk_};
  SpaceEntry& space_ = store_.OpenSpace("raw");
};

TEST_F(TtlTest, AfterItsTimeABlockIsAMissAndMayBePutAgain) {
  SetTtl(store_, space_, 60);
  const auto keys = store_.PutChain(space_, 3);
  const codecs::Slice whole = StoreFixture::Whole(space_);
  store_.clock.Advance(absl::Seconds(59));
  EXPECT_EQ(Matched(keys), 3u);
  EXPECT_TRUE(Get(keys[2]).ok());
  const auto again = store_.PutSource(space_, keys[0], whole);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->is_duplicate) << "use does not prolong it, nor does a duplicate";
  store_.clock.Advance(absl::Seconds(1));
  EXPECT_EQ(Matched(keys), 0u);
  EXPECT_TRUE(absl::IsNotFound(Get(keys[2])));
  EXPECT_EQ(store_.index->Contains(space_.id(), keys, {space_.whole().data(), 1}),
            std::vector<bool>(3, false));
  const auto fresh = store_.PutSource(space_, keys[0], whole);
  ASSERT_TRUE(fresh.ok());
  EXPECT_FALSE(fresh->is_duplicate);
  EXPECT_EQ(Matched(keys), 1u);
  EXPECT_TRUE(Get(keys[0]).ok());
}

TEST_F(TtlTest, WhatIsOverIsCollectedFromEveryTier) {
  SetTtl(store_, space_, 60);
  store_.PutChain(space_, 100);
  SetTtl(store_, space_, 0);
  store_.PutChain(space_, 5, 1000);
  store_.WriteAllDown();
  EXPECT_EQ(disk_->copies.size(), 105u);
  store_.clock.Advance(absl::Seconds(61));
  store_.upkeep->RunOnce();
  EXPECT_EQ(store_.index->figures().block_count, 5u);
  EXPECT_EQ(disk_->copies.size(), 5u);
  EXPECT_EQ(Metric("cairn_expired_blocks_total"), 100);
  EXPECT_EQ(store_.index->figures(TierId::kSsd).copy_count, 5u);
}

TEST_F(TtlTest, APolicyIsOfBlocksThatArePutLater) {
  const auto before = store_.PutChain(space_, 1);
  SetTtl(store_, space_, 60);
  const auto after = store_.PutChain(space_, 1, 10);
  store_.clock.Advance(absl::Seconds(60));
  EXPECT_EQ(Matched(before), 1u);
  EXPECT_EQ(Matched(after), 0u);
}

TEST_F(TtlTest, ARestartKeepsTheTime) {
  SetTtl(store_, space_, 3600);
  const auto keys = store_.PutChain(space_, 2);
  store_.WriteAllDown();
  store_.Kill();
  LastingStore next(disk_);
  SpaceEntry& space = next.OpenSpace("raw");
  EXPECT_EQ(space.coding().policy().ttl_s, 3600u);
  EXPECT_EQ(next.restorer.image_count(), 2u);
  next.clock.Advance(absl::Seconds(3599));
  EXPECT_EQ(next.index->Match(next.Query(space, keys))->blocks.size(), 2u);
  next.clock.Advance(absl::Seconds(1));
  EXPECT_EQ(next.index->Match(next.Query(space, keys))->blocks.size(), 0u);
  next.upkeep->RunOnce();
  EXPECT_TRUE(disk_->copies.empty());
}

// The clock was a year ahead when the blocks came, and is right again after a restart.
TEST_F(TtlTest, AClockThatRanAheadKeepsNothingForLonger) {
  store_.clock.Advance(absl::Hours(24 * 365));
  SetTtl(store_, space_, 3600);
  const auto keys = store_.PutChain(space_, 2);
  store_.WriteAllDown();
  store_.Kill();
  LastingStore next(disk_);
  SpaceEntry& space = next.OpenSpace("raw");
  EXPECT_EQ(next.index->Match(next.Query(space, keys))->blocks.size(), 2u);
  next.clock.Advance(absl::Seconds(3600));
  EXPECT_EQ(next.index->Match(next.Query(space, keys))->blocks.size(), 0u);
}

TEST_F(TtlTest, WhatIsOverAtTheStartIsDropped) {
  store_.clock.Advance(-absl::Hours(2));
  SetTtl(store_, space_, 3600);
  store_.PutChain(space_, 3);
  SetTtl(store_, space_, 3 * 3600);
  store_.PutChain(space_, 2, 100);
  store_.WriteAllDown();
  store_.Kill();
  LastingStore next(disk_);
  EXPECT_EQ(next.restorer.image_count(), 2u);
  EXPECT_EQ(next.restorer.dropped(Restorer::Drop::kExpired), 3u);
  EXPECT_EQ(disk_->copies.size(), 2u);
}

TEST_F(TtlTest, ALeaseDoesNotProlongItAndWhoReadsKeepsTheBytes) {
  SetTtl(store_, space_, 60);
  const auto keys = store_.PutChain(space_, 2);
  const auto match = store_.index->Match(store_.Query(space_, keys, /*wants_lease=*/true));
  ASSERT_TRUE(match.ok());
  auto pins = store_.index->Lookup({space_.id(), keys[0]}, 0, StoreFixture::Whole(space_));
  ASSERT_EQ(pins.size(), 1u);
  const std::vector<std::byte> bytes(pins[0].bytes().begin(), pins[0].bytes().end());
  store_.clock.Advance(absl::Seconds(60));
  store_.upkeep->RunOnce();
  EXPECT_TRUE(absl::IsNotFound(Get(keys[0])));
  EXPECT_EQ(store_.index->figures().block_count, 0u);
  EXPECT_TRUE(std::ranges::equal(pins[0].bytes(), bytes));
  pins.clear();
  store_.index->Release("acme", {*match->lease});
  EXPECT_EQ(store_.host->used_bytes(), 0u);
}

}  // namespace
}  // namespace cairn
