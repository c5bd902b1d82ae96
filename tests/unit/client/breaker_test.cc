// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/breaker.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace cairn {
namespace {

using Call = Breaker::Call;
using State = Breaker::State;

class BreakerTest : public testing::Test {
 protected:
  static BreakerOptions Options() {
    BreakerOptions options;
    options.failures_to_open = 3;
    options.slow_to_open = 2;
    options.open_min = absl::Seconds(1);
    options.open_max = absl::Seconds(4);
    options.probe_timeout = absl::Seconds(5);
    return options;
  }
  void FailUntilOpen() {
    for (int i = 0; i < 3; ++i) breaker_.OnFailed(Call::kGet);
    ASSERT_EQ(breaker_.state(), State::kOpen);
  }

  FakeClock clock_;
  Breaker breaker_{Options(), clock_};
};

TEST_F(BreakerTest, OpensAfterFailuresInARowOnly) {
  breaker_.OnFailed(Call::kGet);
  breaker_.OnFailed(Call::kGet);
  breaker_.OnFetched(0, absl::Milliseconds(1));  // a miss is an answer
  breaker_.OnFailed(Call::kGet);
  breaker_.OnFailed(Call::kGet);
  EXPECT_EQ(breaker_.state(), State::kClosed);
  EXPECT_TRUE(breaker_.Allow());
  breaker_.OnFailed(Call::kGet);
  EXPECT_EQ(breaker_.state(), State::kOpen);
  EXPECT_EQ(breaker_.opened_count(), 1);
}

TEST_F(BreakerTest, OpenRefusesUntilItsTimeThenLetsOneProbeThrough) {
  FailUntilOpen();
  EXPECT_FALSE(breaker_.Allow());
  EXPECT_FALSE(breaker_.Advise(128, 1));
  clock_.Advance(absl::Milliseconds(999));
  EXPECT_FALSE(breaker_.Allow());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(breaker_.Allow());
  EXPECT_EQ(breaker_.state(), State::kHalfOpen);
  EXPECT_FALSE(breaker_.Allow()) << "one probe at a time";
}

TEST_F(BreakerTest, AProbeThatDeliversCloses) {
  FailUntilOpen();
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(breaker_.Allow());
  breaker_.OnFetched(1 << 20, absl::Milliseconds(1));
  EXPECT_EQ(breaker_.state(), State::kClosed);
  EXPECT_TRUE(breaker_.Allow());
}

TEST_F(BreakerTest, AFailedProbeOpensForTwiceAsLongUpToTheLimit) {
  FailUntilOpen();
  for (const int seconds : {1, 2, 4, 4}) {
    clock_.Advance(absl::Seconds(seconds) - absl::Milliseconds(1));
    EXPECT_FALSE(breaker_.Allow()) << seconds;
    clock_.Advance(absl::Milliseconds(1));
    EXPECT_TRUE(breaker_.Allow()) << seconds;
    breaker_.OnFailed(Call::kGet);
    EXPECT_EQ(breaker_.state(), State::kOpen);
  }
}

TEST_F(BreakerTest, AMissDuringAProbeLetsTheNextCallProbe) {
  FailUntilOpen();
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(breaker_.Allow());
  breaker_.OnMatched(/*will_fetch=*/false);
  EXPECT_EQ(breaker_.state(), State::kHalfOpen);
  EXPECT_TRUE(breaker_.Allow());
}

TEST_F(BreakerTest, AMatchThatIsAnsweredClosesWhatMatchesOpened) {
  for (const bool will_fetch : {true, false}) {
    for (int i = 0; i < 3; ++i) breaker_.OnFailed(Call::kMatch);
    ASSERT_EQ(breaker_.state(), State::kOpen);
    clock_.Advance(absl::Seconds(1));
    ASSERT_TRUE(breaker_.Allow());
    breaker_.OnMatched(will_fetch);
    EXPECT_EQ(breaker_.state(), State::kClosed);
    EXPECT_TRUE(breaker_.Allow());
  }
}

TEST_F(BreakerTest, MatchesThatAreAnsweredDoNotHideThatGetsFail) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(breaker_.Allow());
    breaker_.OnMatched(/*will_fetch=*/true);
    breaker_.OnFailed(Call::kGet);
  }
  EXPECT_EQ(breaker_.state(), State::kOpen);
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(breaker_.Allow());
  breaker_.OnMatched(/*will_fetch=*/true);
  EXPECT_EQ(breaker_.state(), State::kHalfOpen) << "a get has to deliver";
  EXPECT_FALSE(breaker_.Allow()) << "until then it is the one probe";
}

TEST_F(BreakerTest, MatchFailuresCountInARowOnly) {
  for (int i = 0; i < 9; ++i) {
    breaker_.OnFailed(Call::kMatch);
    breaker_.OnFailed(Call::kMatch);
    breaker_.OnMatched(/*will_fetch=*/true);
  }
  EXPECT_EQ(breaker_.state(), State::kClosed);
}

TEST_F(BreakerTest, AHitThatNoGetFollowsClosesOnProbation) {
  FailUntilOpen();
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(breaker_.Allow());
  breaker_.OnMatched(/*will_fetch=*/true);
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(breaker_.Allow());
  EXPECT_EQ(breaker_.state(), State::kClosed);
  EXPECT_TRUE(breaker_.Allow());
  breaker_.OnFailed(Call::kGet);
  EXPECT_EQ(breaker_.state(), State::kOpen) << "one failure is enough";
}

TEST_F(BreakerTest, AProbeThatMatchedIsAdvisedToFetch) {
  FailUntilOpen();
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(breaker_.Allow());
  breaker_.OnMatched(/*will_fetch=*/true);
  EXPECT_TRUE(breaker_.Advise(1000, 1'000'000)) << "else the probe never ends";
  EXPECT_FALSE(breaker_.Advise(1000, 1'000'000)) << "only the probe";
  breaker_.OnFetched(1'000'000, absl::Milliseconds(1));
  EXPECT_EQ(breaker_.state(), State::kClosed);
}

TEST_F(BreakerTest, AProbeThatIsNeverFollowedUpExpires) {
  FailUntilOpen();
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(breaker_.Allow());
  clock_.Advance(absl::Seconds(5) - absl::Milliseconds(1));
  EXPECT_FALSE(breaker_.Allow());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(breaker_.Allow());
}

TEST_F(BreakerTest, AFetchThatBeganBeforeItOpenedDoesNotCloseIt) {
  FailUntilOpen();
  breaker_.OnFetched(1 << 20, absl::Milliseconds(1));
  EXPECT_EQ(breaker_.state(), State::kOpen);
}

TEST_F(BreakerTest, AdvisesByMeasuredRates) {
  EXPECT_TRUE(breaker_.Advise(1000, 1'000'000)) << "nothing measured";
  breaker_.OnRecomputed(1000, absl::Seconds(1));  // 1 ms a token
  EXPECT_TRUE(breaker_.Advise(1000, 1'000'000)) << "fetching never measured";
  breaker_.OnFetched(1'000'000, absl::Milliseconds(100));  // 10 MB/s
  EXPECT_TRUE(breaker_.Advise(1000, 1'000'000)) << "0.1 s against 1 s";
  EXPECT_FALSE(breaker_.Advise(10, 1'000'000)) << "0.1 s against 0.01 s";
  EXPECT_EQ(breaker_.state(), State::kClosed);
}

TEST_F(BreakerTest, ASlowStoreOpensAndAFastProbeConvincesAgain) {
  breaker_.OnRecomputed(1000, absl::Seconds(1));
  breaker_.OnFetched(1'000'000, absl::Seconds(10));
  EXPECT_FALSE(breaker_.Advise(1000, 1'000'000));
  EXPECT_EQ(breaker_.state(), State::kClosed);
  EXPECT_FALSE(breaker_.Advise(1000, 1'000'000));
  EXPECT_EQ(breaker_.state(), State::kOpen);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(breaker_.Advise(1000, 1'000'000)) << "the probe";
  breaker_.OnFetched(1'000'000, absl::Milliseconds(1));
  EXPECT_TRUE(breaker_.Advise(1000, 1'000'000)) << "the probe's figure replaces the average";
}

TEST_F(BreakerTest, AStoreThatStaysSlowIsAskedEverMoreRarely) {
  breaker_.OnRecomputed(1000, absl::Seconds(1));
  breaker_.OnFetched(1'000'000, absl::Seconds(10));
  for (const int seconds : {1, 2, 4, 4}) {
    while (breaker_.state() == State::kClosed) EXPECT_FALSE(breaker_.Advise(1000, 1'000'000));
    clock_.Advance(absl::Seconds(seconds) - absl::Milliseconds(1));
    EXPECT_FALSE(breaker_.Allow()) << seconds;
    clock_.Advance(absl::Milliseconds(1));
    ASSERT_TRUE(breaker_.Allow()) << seconds;
    breaker_.OnFetched(1'000'000, absl::Seconds(10));
  }
}

}  // namespace
}  // namespace cairn
