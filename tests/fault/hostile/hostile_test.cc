// SPDX-License-Identifier: Apache-2.0
// One daemon, attacked in every way that we know, while an honest client is at work throughout.
// After each attack: the honest client got no wrong byte, no call of it was later than its deadline
// by more than a quarter of a second, it goes on; and the daemon has its memory, its threads and
// its descriptors back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/fault/hostile/attacks.h"
#include "tests/fault/hostile/victim.h"
#include "tests/support/process_weight.h"
#include "tests/support/random.h"
#include "tests/support/sanitizer.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

constexpr absl::Duration kAttackFor = absl::Seconds(1);
const absl::Duration kLateMax = absl::Milliseconds(250) * kSlowdown;
const absl::Duration kRecoveredWithin = absl::Seconds(30) * kSlowdown;
constexpr rlim_t kDaemonDescriptors = 1024;
// Allocators keep some of what they had; the arenas of gRPC's threads are a few MiB each.
constexpr uint64_t kMemorySlackBytes = uint64_t{64} << 20;
constexpr uint64_t kThreadSlack = 8, kDescriptorSlack = 16;

class HostileTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    rlimit ours{}, its{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &ours), 0);
    its = {kDaemonDescriptors, ours.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &its), 0);
    auto daemon = DaemonProcess::Start({"--host-bytes=256MiB", "--admin=127.0.0.1:0"});
    ours.rlim_cur = ours.rlim_max;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &ours), 0);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    auto victim = Victim::Start(daemon_->endpoint("control"));
    ASSERT_TRUE(victim.ok()) << victim.status();
    victim_ = *std::move(victim);
    ASSERT_TRUE(victim_->AwaitHit(absl::Seconds(30)));
    base_ = WeightOf(daemon_->process().pid());
  }

  static void TearDownTestSuite() {
    victim_.reset();
    daemon_.reset();
  }

  void SetUp() override { ASSERT_TRUE(daemon_ != nullptr && victim_ != nullptr); }

  // Runs the attack beside the victim, then looks at both.
  void Survive(void (*attack)(Attack&)) {
    (void)victim_->TakeRecord();
    Attack attack_now{*daemon_, MonotonicNow() + kAttackFor, SeededRandom()};
    attack(attack_now);
    EXPECT_GT(attack_now.blows.load(), 0u) << "nobody was attacked";
    EXPECT_TRUE(victim_->AwaitHit(kRecoveredWithin)) << "the victim gets nothing any more";
    const VictimRecord record = victim_->TakeRecord();
    EXPECT_EQ(record.wrong_blocks, 0u);
    EXPECT_LE(record.late_max, kLateMax);
    EXPECT_EQ(record.failures, 0u) << record.last_failure;
    RecordProperty("victim_calls", absl::StrCat(record.calls));
    // tests/bench/hostile.py reads it.
    RecordProperty("victim_get_p99_us",
                   absl::StrCat(absl::ToInt64Microseconds(P99(record.get_times))));
    ASSERT_TRUE(daemon_->process().is_running()) << daemon_->ReadLog();
    ExpectBackToBase();
    EXPECT_THAT(daemon_->HttpGet("/readyz"), ::testing::HasSubstr("200 OK"));
    EXPECT_TRUE(RawClient::Open(daemon_->endpoint("control")).ok()) << "a new client gets in";
  }

  static void ExpectBackToBase() {
    const pid_t pid = daemon_->process().pid();
    ProcessWeight now;
    const bool is_back = WaitFor(
        [&] {
          now = WeightOf(pid);
          return (kIsSanitized || now.bytes <= base_.bytes + kMemorySlackBytes) &&
                 now.threads <= base_.threads + kThreadSlack &&
                 now.descriptors <= base_.descriptors + kDescriptorSlack;
        },
        kRecoveredWithin, absl::Milliseconds(50));
    EXPECT_TRUE(is_back) << "MiB " << (base_.bytes >> 20) << " -> " << (now.bytes >> 20)
                         << ", threads " << base_.threads << " -> " << now.threads
                         << ", descriptors " << base_.descriptors << " -> " << now.descriptors;
  }

  static inline std::unique_ptr<DaemonProcess> daemon_;
  static inline std::unique_ptr<Victim> victim_;
  static inline ProcessWeight base_;
};

// The victim alone: what its times are compared with.
TEST_F(HostileTest, Nobody) {
  Survive([](Attack& attack) {
    attack.blows = 1;
    (void)WaitFor([] { return false; }, attack.until - MonotonicNow());
  });
}
TEST_F(HostileTest, RefusedSessionsThatAreCancelled) { Survive(CancelRefusedSessions); }
TEST_F(HostileTest, MegabytesOfEmptyMessages) { Survive(SendVastMessages); }
TEST_F(HostileTest, StalledUploads) { Survive(StallUploads); }
TEST_F(HostileTest, ReflectionStreams) { Survive(OpenReflectionStreams); }
TEST_F(HostileTest, VerifyThatNobodyReads) { Survive(VerifyWithoutReading); }
TEST_F(HostileTest, InventedTenants) { Survive(InventTenants); }
TEST_F(HostileTest, WaitingMatches) { Survive(LeaveMatchesWaiting); }
TEST_F(HostileTest, MatchesOfBlocksInSlivers) { Survive(MatchSlivers); }
TEST_F(HostileTest, MutatedCalls) { Survive(MutateCalls); }
TEST_F(HostileTest, BadTickets) {
  const size_t log_before = daemon_->ReadLog().size();
  Survive(GreetWithBadTickets);
  EXPECT_LE(daemon_->ReadLog().size(), log_before + (256 << 10));
}
TEST_F(HostileTest, PutsFromMemoryWithoutPages) { Survive(PutFromHoles); }
TEST_F(HostileTest, MutatedFrames) { Survive(MutateFrames); }
TEST_F(HostileTest, LoansThatAreHeld) { Survive(HoldLoans); }
TEST_F(HostileTest, DescriptorsHeld) { Survive(HoldDescriptors); }
TEST_F(HostileTest, HttpStorm) { Survive(StormHttp); }

// The last one: the daemon goes when it is told to, whoever waits.
TEST_F(HostileTest, StopsBesideWaitingMatches) {
  std::thread waiting([] {
    Attack attack{*daemon_, MonotonicNow() + kAttackFor, SeededRandom()};
    LeaveMatchesWaiting(attack);
  });
  EXPECT_TRUE(WaitFor([] { return daemon_->Metric("cairn_waiters") > 0; }, absl::Seconds(5)));
  victim_.reset();
  daemon_->process().Signal(SIGTERM);
  const auto code = daemon_->process().Wait(absl::Seconds(10) * kSlowdown);
  waiting.join();
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
}

}  // namespace
}  // namespace cairn
