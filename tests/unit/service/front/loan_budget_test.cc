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
  EXPECT_FALSE(loans.TakeBytes(1, 1));
}

TEST(LoanBudget, ASessionHasHalfOfWhatAllHave) {
  LoanBudget loans(kHostBytes);
  EXPECT_TRUE(loans.is_lending());
  ASSERT_TRUE(loans.TakeBytes(1, 12_MiB));
  EXPECT_FALSE(loans.TakeBytes(1, 1));
  ASSERT_TRUE(loans.TakeBytes(2, 12_MiB));
  EXPECT_FALSE(loans.TakeBytes(3, 2_MiB));  // of all
  ASSERT_TRUE(loans.TakeBytes(3, 1_MiB));
  loans.GiveBytesBack(1, 12_MiB);
  EXPECT_TRUE(loans.TakeBytes(1, 12_MiB));
  MetricCapture capture;
  loans.Report(capture);
  EXPECT_EQ(capture.Value("cairn_loans_refused_total"), 2);
}

TEST(LoanBudget, SmallLoansAreCounted) {
  LoanBudget loans(kHostBytes);
  for (size_t i = 0; i < limits::kLoansPerSessionMax; ++i) ASSERT_TRUE(loans.TakeBytes(1, 1));
  EXPECT_FALSE(loans.TakeBytes(1, 1));
  EXPECT_TRUE(loans.TakeBytes(2, 1));
  loans.GiveBytesBack(1, 1);
  EXPECT_TRUE(loans.TakeBytes(1, 1));
  EXPECT_FALSE(loans.TakeBytes(1, UINT64_MAX));  // no sum overflows
}

}  // namespace
}  // namespace cairn
