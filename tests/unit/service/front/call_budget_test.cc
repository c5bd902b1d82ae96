// SPDX-License-Identifier: Apache-2.0
#include "service/front/call_budget.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace cairn {
namespace {

class Call final : public CallBudget::Holder {
 public:
  void GiveWay() override { ++gone; }
  int gone = 0;
};

class CallBudgetTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  CallBudget budget_{{.bytes_max = 100,
                      .calls_max = 4,
                      .grace = absl::Milliseconds(250),
                      .time_max = absl::Seconds(60)},
                     clock_};
  Call a_, b_, c_, d_, e_;
};

TEST_F(CallBudgetTest, WhatIsHeldIsGivenBack) {
  EXPECT_TRUE(budget_.Hold(a_, 40));
  EXPECT_TRUE(budget_.Hold(b_, 40));
  EXPECT_TRUE(budget_.Hold(a_, 10));  // instead of the 40
  EXPECT_EQ(budget_.bytes(), 50u);
  budget_.Release(a_);
  budget_.Release(a_);
  budget_.Release(b_);
  EXPECT_EQ(budget_.bytes(), 0u);
}

TEST_F(CallBudgetTest, TheLongestGoesWhenOthersNeedRoom) {
  EXPECT_TRUE(budget_.Hold(a_, 60));
  clock_.Advance(absl::Milliseconds(200));
  EXPECT_TRUE(budget_.Hold(b_, 40));
  clock_.Advance(absl::Milliseconds(100));
  EXPECT_TRUE(budget_.Hold(c_, 40));
  EXPECT_EQ(a_.gone, 1);
  EXPECT_EQ(b_.gone, 0);
  EXPECT_EQ(budget_.bytes(), 80u);
  budget_.Release(a_);
  EXPECT_EQ(budget_.bytes(), 80u);
  for (Call* call : {&b_, &c_}) budget_.Release(*call);
}

TEST_F(CallBudgetTest, AYoungCallStaysWhoeverNeedsRoom) {
  EXPECT_TRUE(budget_.Hold(a_, 90));
  clock_.Advance(absl::Milliseconds(249));
  EXPECT_TRUE(budget_.Hold(b_, 90));
  EXPECT_EQ(a_.gone, 0);
  EXPECT_EQ(budget_.bytes(), 180u);
  for (Call* call : {&a_, &b_}) budget_.Release(*call);
}

TEST_F(CallBudgetTest, WhoHoldsNewlyIsYoungAgain) {
  EXPECT_TRUE(budget_.Hold(a_, 60));
  clock_.Advance(absl::Milliseconds(240));
  EXPECT_TRUE(budget_.Hold(a_, 60));
  clock_.Advance(absl::Milliseconds(240));
  EXPECT_TRUE(budget_.Hold(b_, 60));
  EXPECT_EQ(a_.gone, 0);
  for (Call* call : {&a_, &b_}) budget_.Release(*call);
}

TEST_F(CallBudgetTest, AMinuteIsEnoughForAnybody) {
  EXPECT_TRUE(budget_.Hold(a_, 1));
  clock_.Advance(absl::Seconds(60));
  EXPECT_TRUE(budget_.Hold(b_, 1));
  EXPECT_EQ(a_.gone, 1);
  budget_.Release(b_);
}

TEST_F(CallBudgetTest, ThereAreNotTooManyOfThem) {
  for (Call* call : {&a_, &b_, &c_, &d_}) EXPECT_TRUE(budget_.Hold(*call, 1));
  EXPECT_FALSE(budget_.Hold(e_, 1));
  EXPECT_EQ(budget_.bytes(), 4u);
  budget_.Release(b_);
  EXPECT_TRUE(budget_.Hold(e_, 1));
  for (Call* call : {&a_, &c_, &d_, &e_}) budget_.Release(*call);
}

}  // namespace
}  // namespace cairn
