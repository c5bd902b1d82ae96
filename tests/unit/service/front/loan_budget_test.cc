// SPDX-License-Identifier: Apache-2.0
#include "service/loan_budget.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "service/limits.h"
#include "tests/support/metric_capture.h"

namespace cairn {
namespace {

constexpr uint64_t kHostBytes = 100_MiB;

TEST(LoanBudget, NothingIsLentWithoutATier) {
  LoanBudget loans(0);
  EXPECT_FALSE(loans.is_lending());
  EXPECT_FALSE(loans.TakeBytes(1, {.host = 1}));
}

TEST(LoanBudget, ASessionHasHalfOfWhatAllHave) {
  LoanBudget loans(kHostBytes);
  EXPECT_TRUE(loans.is_lending());
  ASSERT_TRUE(loans.TakeBytes(1, {.host = 12_MiB}));
  EXPECT_FALSE(loans.TakeBytes(1, {.host = 1}));
  ASSERT_TRUE(loans.TakeBytes(2, {.host = 12_MiB}));
  EXPECT_FALSE(loans.TakeBytes(3, {.host = 2_MiB}));  // of all
  ASSERT_TRUE(loans.TakeBytes(3, {.host = 1_MiB}));
  loans.GiveBytesBack(1, {.host = 12_MiB});
  EXPECT_TRUE(loans.TakeBytes(1, {.host = 12_MiB}));
  MetricCapture capture;
  loans.Report(capture);
  EXPECT_EQ(capture.Value("cairn_loans_refused_total"), 2);
}

TEST(LoanBudget, SmallLoansAreCounted) {
  LoanBudget loans(kHostBytes);
  for (size_t i = 0; i < limits::kLoansPerSessionMax; ++i)
    ASSERT_TRUE(loans.TakeBytes(1, {.host = 1}));
  EXPECT_FALSE(loans.TakeBytes(1, {.host = 1}));
  EXPECT_TRUE(loans.TakeBytes(2, {.host = 1}));
  loans.GiveBytesBack(1, {.host = 1});
  EXPECT_TRUE(loans.TakeBytes(1, {.host = 1}));
  EXPECT_FALSE(loans.TakeBytes(1, {.host = UINT64_MAX}));  // no sum overflows
}

// Staging has limits of its own, above the part that puts and answers need at least.
TEST(LoanBudget, StagingIsLentAboveItsMinimum) {
  LoanBudget least(kHostBytes, limits::kStagingBytesMin);
  EXPECT_FALSE(least.TakeBytes(1, {.staging = 1}));
  LoanBudget loans(kHostBytes, 1000_MiB);
  ASSERT_TRUE(loans.TakeBytes(1, {.staging = 49_MiB}));
  EXPECT_FALSE(loans.TakeBytes(1, {.staging = 2_MiB}));
  EXPECT_TRUE(loans.TakeBytes(1, {.host = 1_MiB}));
  ASSERT_TRUE(loans.TakeBytes(2, {.host = 1_MiB, .staging = 49_MiB}));
  EXPECT_FALSE(loans.TakeBytes(3, {.staging = 3_MiB}));  // of all
  loans.GiveBytesBack(2, {.host = 1_MiB, .staging = 49_MiB});
  EXPECT_TRUE(loans.TakeBytes(3, {.staging = 3_MiB}));
  LoanBudget little(kHostBytes, limits::kStagingBytesMin + 4_MiB);
  EXPECT_TRUE(little.TakeBytes(1, {.staging = 2_MiB}));
  EXPECT_FALSE(little.TakeBytes(1, {.staging = 1}));
}

}  // namespace
}  // namespace cairn
