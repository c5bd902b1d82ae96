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

// --- Two classes of rates: the daemon's own tiers, and other members

class BreakerPeerTest : public BreakerTest {
 protected:
  static constexpr uint64_t kBytes = 1 << 20;

  void SetUp() override { breaker_.OnRecomputed(1000, absl::Milliseconds(100)); }
  // Fetches of kBytes: 1 ms from its own tiers, which is faster than recomputing 100 tokens in 10
  // ms, and `peer_time` from a member.
  void Measure(absl::Duration peer_time) {
    for (int i = 0; i < 10; ++i) {
      breaker_.OnFetched({.local = kBytes}, absl::Milliseconds(1));
      breaker_.OnFetched({.peer = kBytes}, peer_time);
    }
  }
  bool AdviseLocal() { return breaker_.Advise(100, {.local = kBytes}); }
  bool AdvisePeer() { return breaker_.Advise(100, {.peer = kBytes}); }
};

TEST_F(BreakerPeerTest, SlowMembersDoNotMakeTheDaemonsTiersLookSlow) {
  Measure(absl::Milliseconds(50));
  EXPECT_TRUE(AdviseLocal());
  EXPECT_FALSE(AdvisePeer());
  EXPECT_FALSE(breaker_.Advise(100, {.local = kBytes, .peer = kBytes}));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(AdvisePeer());
  EXPECT_EQ(breaker_.state(), State::kClosed) << "matches go on";
  EXPECT_TRUE(breaker_.Allow());
  EXPECT_TRUE(AdviseLocal());
}

TEST_F(BreakerPeerTest, SlowTiersDoNotMakeMembersLookSlow) {
  for (int i = 0; i < 10; ++i) {
    breaker_.OnFetched({.local = kBytes}, absl::Milliseconds(50));
    breaker_.OnFetched({.peer = kBytes}, absl::Milliseconds(2));
  }
  EXPECT_TRUE(AdvisePeer());
  EXPECT_FALSE(AdviseLocal());
  EXPECT_TRUE(AdvisePeer());
  EXPECT_FALSE(AdviseLocal());
  EXPECT_EQ(breaker_.state(), State::kOpen) << "its own tiers are slow";
}

TEST_F(BreakerPeerTest, AClassThatWasNotMeasuredCountsNothing) {
  EXPECT_TRUE(AdvisePeer());
  breaker_.OnFetched({.local = kBytes}, absl::Milliseconds(1));
  EXPECT_TRUE(AdvisePeer());
  EXPECT_TRUE(breaker_.Advise(100, {.local = kBytes, .peer = kBytes}));
}

TEST_F(BreakerPeerTest, MembersAreTriedAgainAfterTheOpenTime) {
  Measure(absl::Milliseconds(50));
  EXPECT_FALSE(AdvisePeer());
  EXPECT_FALSE(AdvisePeer());  // slow_to_open
  clock_.Advance(absl::Milliseconds(999));
  EXPECT_FALSE(AdvisePeer());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(AdvisePeer()) << "a probe";
  EXPECT_FALSE(AdvisePeer()) << "one at a time";
  breaker_.OnFetched({.peer = kBytes}, absl::Milliseconds(50));
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(AdvisePeer()) << "still slow";
  clock_.Advance(absl::Seconds(1));
  EXPECT_FALSE(AdvisePeer()) << "for twice as long";
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(AdvisePeer());
  breaker_.OnFetched({.peer = kBytes}, absl::Milliseconds(2));
  EXPECT_TRUE(AdvisePeer()) << "the probe's measurement replaces the average";
  EXPECT_TRUE(AdvisePeer());
}

TEST_F(BreakerPeerTest, AProbeThatMeasuresNothingIsFollowedByAnother) {
  Measure(absl::Milliseconds(50));
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(AdvisePeer());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(AdvisePeer());
  clock_.Advance(absl::Seconds(5) - absl::Milliseconds(1));
  EXPECT_FALSE(AdvisePeer());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(AdvisePeer());
}

// A batch with blocks of both takes as long as its slowest.
TEST_F(BreakerPeerTest, OfAMixedBatchMembersAreChargedWithTheRest) {
  Measure(absl::Milliseconds(2));
  for (int i = 0; i < 20; ++i) {
    breaker_.OnFetched({.local = kBytes, .peer = kBytes}, absl::Milliseconds(51));
  }
  EXPECT_FALSE(AdvisePeer());
  EXPECT_TRUE(AdviseLocal());
  breaker_.OnFetched({.local = 100 * kBytes, .peer = 1}, absl::Milliseconds(50));
  EXPECT_FALSE(AdvisePeer()) << "a batch that took less than its local part says nothing";
  EXPECT_TRUE(AdviseLocal());
}

TEST_F(BreakerPeerTest, ADeliveryOfEitherClosesTheBreaker) {
  for (const bool is_peer : {false, true}) {
    for (int i = 0; i < 3; ++i) breaker_.OnFailed(Call::kGet);
    ASSERT_EQ(breaker_.state(), State::kOpen);
    clock_.Advance(absl::Seconds(4));
    ASSERT_TRUE(breaker_.Allow());
    breaker_.OnFetched(is_peer ? Breaker::Bytes{.peer = kBytes} : Breaker::Bytes{.local = kBytes},
                       absl::Milliseconds(1));
    EXPECT_EQ(breaker_.state(), State::kClosed);
  }
}

}  // namespace
}  // namespace cairn
