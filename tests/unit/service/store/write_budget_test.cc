// SPDX-License-Identifier: Apache-2.0
// How much is written down where the drives are to last.
#include "service/upkeep/write_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/lasting_store.h"
#include "tests/support/metric_capture.h"

namespace cairn {
namespace {

using State = WriteBudget::State;

TEST(WriteBudgetTest, FillsThroughTheDayAndCarriesOverForOne) {
  absl::Time now = absl::UnixEpoch();
  WriteBudget budget(86'400, 1000, now);
  EXPECT_EQ(budget.left(), 10'800);
  EXPECT_EQ(budget.Look(now), State::kAmple);
  budget.Spend(6'000);
  EXPECT_EQ(budget.Look(now), State::kShort);
  budget.Spend(5'000);
  EXPECT_EQ(budget.Look(now), State::kSpent);
  EXPECT_EQ(budget.RefilledAt(now), now + absl::Seconds(200));
  now += absl::Seconds(201);
  EXPECT_EQ(budget.Look(now), State::kShort);
  EXPECT_EQ(budget.left(), 1);
  now += absl::Hours(100);
  EXPECT_EQ(budget.Look(now), State::kAmple);
  EXPECT_EQ(budget.left(), 86'400);
}

TEST(WriteBudgetTest, WithoutABoundThereIsAlwaysEnough) {
  WriteBudget budget(0, 1000, absl::UnixEpoch());
  budget.Spend(1'000'000);
  EXPECT_EQ(budget.Look(absl::UnixEpoch()), State::kAmple);
  EXPECT_EQ(budget.left(), 0);
}

TEST(WriteBudgetTest, RemembersWhatItSaw) {
  WriteBudget budget(1, 100'000, absl::UnixEpoch());
  size_t forgotten = 0;
  for (uint64_t i = 1; i <= 1000; ++i) {
    EXPECT_FALSE(budget.See(StoreFixture::Key(i)));
  }
  for (uint64_t i = 1; i <= 1000; ++i) {
    forgotten += budget.See(StoreFixture::Key(i)) ? 0 : 1;
  }
  EXPECT_EQ(forgotten, 0u);
}

class BudgetedWriteDown : public testing::Test {
 protected:
  static constexpr uint64_t kImages = 16;  // that a process begins with

  void SetUp() override {
    ASSERT_TRUE(Put(1).ok());
    store_.WriteAllDown();
    image_bytes_ = disk_->copies.begin()->second.bytes.size();
    store_.upkeep = std::make_unique<Upkeep>(
        store_.spaces, *store_.index, *store_.tiers, store_.clock,
        Upkeep::Options{.write_budget_bytes =
                            limits::kWriteBudgetStartShare * kImages * image_bytes_});
  }
  absl::Status Put(uint64_t number) {
    return store_.PutSource(space_, StoreFixture::Key(number), StoreFixture::Whole(space_))
        .status();
  }
  void Run() {
    for (int round = 0; round < 10; ++round) {
      store_.upkeep->RunOnce();
    }
  }
  bool IsDown(uint64_t number) const { return disk_->Find(StoreFixture::Key(number)) != nullptr; }
  double Metric(const std::string& series) {
    MetricCapture metrics;
    store_.upkeep->Report(metrics);
    return metrics.Value(series);
  }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  LastingStore store_{disk_};
  SpaceEntry& space_ = store_.OpenSpace("raw");
  uint64_t image_bytes_ = 0;
};

TEST_F(BudgetedWriteDown, WhileItIsShortASecondSightingIsNeeded) {
  for (uint64_t number = 100; number < 140; ++number) {
    ASSERT_TRUE(Put(number).ok());
  }
  Run();
  EXPECT_TRUE(IsDown(100) && IsDown(106)) << "while there is enough: all, in their order";
  EXPECT_FALSE(IsDown(120));
  const double withheld = Metric("cairn_write_downs_withheld_total");
  EXPECT_EQ(withheld, 41 - static_cast<double>(disk_->copies.size()));
  EXPECT_GE(withheld, 30);
  EXPECT_GT(Metric("cairn_write_budget_left_bytes"), 0) << "what is seen again has room";
  EXPECT_EQ(store_.upkeep->unwritten_count(), 0u) << "nobody waits for them";

  // Asked for in memory.
  store_.index->Lookup({space_.id(), StoreFixture::Key(120)}, 0, StoreFixture::Whole(space_));
  Run();
  EXPECT_TRUE(IsDown(120));
  EXPECT_FALSE(IsDown(121));
  // Put again, after it went.
  store_.index->Delete(space_.id(), {StoreFixture::Key(125)});
  ASSERT_TRUE(Put(125).ok());
  Run();
  EXPECT_TRUE(IsDown(125));
  EXPECT_EQ(Metric("cairn_write_downs_withheld_total"), withheld);
}

TEST_F(BudgetedWriteDown, NothingIsWrittenOnceItIsSpentUntilItFills) {
  for (uint64_t number = 100; number < 140; ++number) {
    ASSERT_TRUE(Put(number).ok());
    store_.index->Lookup({space_.id(), StoreFixture::Key(number)}, 0, StoreFixture::Whole(space_));
  }
  Run();
  const size_t written = disk_->copies.size();
  EXPECT_GE(written, kImages);
  EXPECT_LE(written, kImages + 3);
  EXPECT_EQ(store_.upkeep->unwritten_count(), 41 - written) << "a drain says so";
  EXPECT_LE(Metric("cairn_write_budget_left_bytes"), 0);
  EXPECT_LE(store_.upkeep->RunOnce(), store_.clock.Now() + absl::Seconds(1));
  store_.clock.Advance(absl::Hours(24));
  Run();
  EXPECT_EQ(disk_->copies.size(), 41u);
  EXPECT_EQ(store_.upkeep->unwritten_count(), 0u);
}

TEST_F(BudgetedWriteDown, WhatFollowsBringsItsPrefix) {
  const auto keys = store_.PutChain(space_, 30, 200);
  Run();
  const size_t written = disk_->copies.size();
  ASSERT_LT(written, 20u);
  EXPECT_GT(Metric("cairn_write_budget_left_bytes"), 0) << "a child is no sighting of its parent";
  // The last of them is asked for: what comes before it is to be there first.
  store_.index->Lookup({space_.id(), keys[written + 3]}, 0, StoreFixture::Whole(space_));
  Run();
  EXPECT_TRUE(IsDown(200 + written + 3));
  EXPECT_TRUE(IsDown(200 + written + 2));
}

}  // namespace
}  // namespace cairn
