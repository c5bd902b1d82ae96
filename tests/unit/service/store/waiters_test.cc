// SPDX-License-Identifier: Apache-2.0
// How many of those who wait one hold of the index's lock looks at, and in which order they come.
#include "service/index/waiters.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

namespace cairn {
namespace {

constexpr size_t kSessions = limits::kWaitersMax / limits::kWaitersPerSessionMax;

BlockName Name(uint64_t number) {
  BlockName name;
  name.space_id = 1;
  std::memcpy(name.key.data(), &number, sizeof(number));
  return name;
}

// As many as may wait, each a millisecond longer than the one before, half of them for one block.
class WaitersTest : public testing::Test {
 protected:
  WaitersTest() {
    for (size_t i = 0; i < limits::kWaitersMax; ++i) {
      auto waiter = std::make_unique<Waiter>();
      waiter->query.session_id = 1 + i % kSessions;
      waiter->query.tenant = "acme";
      waiter->query.token_limit = static_cast<uint32_t>(i);  // names it here
      waiter->deadline = start_ + absl::Milliseconds(i);
      waiters_.File(std::move(waiter), Name(i % 2 == 0 ? 0 : i));
    }
  }
  template <typename Step>
  std::vector<size_t> InHolds(Step step) {
    std::vector<size_t> counts;
    for (bool is_over = false; !is_over;) {
      Visits visits;
      is_over = step(visits);
      counts.push_back(visits.count());
      EXPECT_LE(visits.count(), limits::kVisitsPerHoldMax);
    }
    return counts;
  }
  std::vector<size_t> TakeLate(absl::Time now) {
    return InHolds([&](Visits& visits) { return waiters_.TakeLate(now, visits, &taken_); });
  }
  // The first is `first`, and each is `step` more than the one before.
  void ExpectTaken(size_t count, size_t first, size_t step) const {
    ASSERT_EQ(taken_.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(taken_[i]->query.token_limit, first + i * step);
    }
  }

  const absl::Time start_ = absl::FromUnixSeconds(1'000'000);
  Waiters waiters_;
  Waiters::Taken taken_;
};

TEST_F(WaitersTest, ARoundBeforeTheFirstDeadlineLooksAtNone) {
  EXPECT_EQ(waiters_.next_deadline(), start_);
  EXPECT_EQ(TakeLate(start_ - absl::Milliseconds(1)), std::vector<size_t>{0});
  EXPECT_EQ(TakeLate(start_), std::vector<size_t>{1});
  EXPECT_EQ(waiters_.next_deadline(), start_ + absl::Milliseconds(1));
  EXPECT_EQ(TakeLate(start_ + absl::Hours(1)).size(), 2u);
  ExpectTaken(limits::kWaitersMax, 0, 1);
  EXPECT_EQ(waiters_.next_deadline(), absl::InfiniteFuture());
}

TEST_F(WaitersTest, ThoseOfABlockComeInTheirOrder) {
  const auto take = [&](const BlockName& name) {
    return InHolds([&](Visits& visits) { return waiters_.TakeFor(name, visits, &taken_); });
  };
  EXPECT_EQ(take(Name(limits::kWaitersMax)), std::vector<size_t>{0});
  EXPECT_EQ(take(Name(0)), std::vector<size_t>{limits::kWaitersMax / 2});
  ExpectTaken(limits::kWaitersMax / 2, 0, 2);
  taken_.clear();
  EXPECT_EQ(take(Name(7)), std::vector<size_t>{1});
  ExpectTaken(1, 7, 0);
}

TEST_F(WaitersTest, TheEndOfASessionLooksAtItsOwn) {
  const auto take = [&] {
    return InHolds([&](Visits& visits) { return waiters_.TakeOf(3, visits, &taken_); });
  };
  EXPECT_EQ(take(), std::vector<size_t>{limits::kWaitersPerSessionMax});
  ExpectTaken(limits::kWaitersPerSessionMax, 2, kSessions);
  taken_.clear();
  EXPECT_EQ(take(), std::vector<size_t>{0});
}

}  // namespace
}  // namespace cairn
