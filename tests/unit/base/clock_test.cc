// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace cairn {
namespace {

TEST(Clock, NeverGoesBackAndIsNearTheWallClock) {
  absl::Time last = MonotonicNow();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = RealClock::Get().Now();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_LT(absl::AbsDuration(absl::Now() - MonotonicNow()), absl::Seconds(10));
}

TEST(Clock, FakeMovesWhenTold) {
  FakeClock clock;
  const absl::Time start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(absl::Seconds(3));
  EXPECT_EQ(clock.Now() - start, absl::Seconds(3));
  clock.Set(start);
  EXPECT_EQ(clock.Now(), start);
}

}  // namespace
}  // namespace cairn
