// SPDX-License-Identifier: Apache-2.0
// Strangers: whoever may open the daemon's sockets and has no session. While they attack, clients
// that are there are served, new ones get in, the daemon says that it is ready, and it ends when it
// is told to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/fault/hostile/attacks.h"
#include "tests/fault/hostile/victim.h"
#include "tests/support/random.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

constexpr absl::Duration kAttackFor = absl::Seconds(2);
// Until a client that comes during an attack has a session and a connection, trying again.
const absl::Duration kInWithin = absl::Seconds(10) * kSlowdown;
constexpr int kNewClients = 3;

class StrangersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    rlimit ours{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &ours), 0);
    ours.rlim_cur = ours.rlim_max;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &ours), 0);
  }

  void StartDaemon(bool is_unix) {
    std::vector<std::string> flags = {"--host-bytes=256MiB", "--lanes=1"};
    if (is_unix) {
      flags.push_back(absl::StrCat("--control=unix:", folder_.File("control.sock")));
      flags.push_back(absl::StrCat("--admin=unix:", folder_.File("admin.sock")));
    }
    auto daemon = DaemonProcess::Start(flags);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    auto victim = Victim::Start(daemon_->endpoint("control"));
    ASSERT_TRUE(victim.ok()) << victim.status();
    victim_ = *std::move(victim);
    ASSERT_TRUE(victim_->AwaitHit(absl::Seconds(30)));
  }

  bool GetsIn() const {
    const auto client = RawClient::Open(daemon_->endpoint("control"), "newcomer");
    if (!client.ok()) return false;
    const auto connection = (*client)->Dial(/*region_bytes=*/1 << 20);
    return connection.ok();
  }

  // Serves everybody while the attack goes on.
  void ServeDuring(void (*attack)(Attack&)) {
    (void)victim_->TakeRecord();
    Attack now{*daemon_, MonotonicNow() + kAttackFor, SeededRandom()};
    std::thread attacker([&] { attack(now); });
    EXPECT_TRUE(WaitFor([&] { return now.blows.load() > 10; }));
    for (int i = 0; i < kNewClients; ++i) {
      EXPECT_TRUE(WaitFor([&] { return GetsIn(); }, kInWithin)) << "a new client gets in";
      EXPECT_THAT(daemon_->HttpGet("/readyz"), ::testing::HasSubstr("200 OK"));
    }
    EXPECT_TRUE(victim_->AwaitHit(kInWithin));
    attacker.join();
    const VictimRecord record = victim_->TakeRecord();
    EXPECT_EQ(record.wrong_blocks, 0u);
    EXPECT_EQ(record.failures, 0u) << record.last_failure;
    EXPECT_TRUE(daemon_->process().is_running()) << daemon_->ReadLog();
  }

  void ExpectEnds() {
    victim_.reset();
    const absl::Time begun = MonotonicNow();
    daemon_->process().Signal(SIGTERM);
    const auto code = daemon_->process().Wait(absl::Seconds(30) * kSlowdown);
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, 0) << daemon_->ReadLog();
    EXPECT_LT(MonotonicNow() - begun, absl::Seconds(8) * kSlowdown);
  }

  TempDir folder_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Victim> victim_;
};

TEST_F(StrangersTest, DescriptorsThatAreSlowToClose) {
  StartDaemon(/*is_unix=*/true);
  ServeDuring(SendSlowDescriptors);
  // And while it ends.
  Attack last{*daemon_, MonotonicNow() + absl::Milliseconds(500), SeededRandom()};
  SendSlowDescriptors(last);
  ExpectEnds();
}

TEST_F(StrangersTest, SilentConnectionsToTheDataSocket) {
  StartDaemon(/*is_unix=*/false);
  ServeDuring(CrowdDataSocket);
  EXPECT_GT(daemon_->Metric("cairn_transport_newcomers_dropped_total{transport=\"local\",reason="
                            "\"gave_way\""),
            0);
  ExpectEnds();
}

TEST_F(StrangersTest, SilentConnectionsToTheControlPort) {
  StartDaemon(/*is_unix=*/false);
  ServeDuring(CrowdControl);
  EXPECT_GT(daemon_->Metric("cairn_control_connections_total{outcome=\"gave_way_silent\""), 0);
  ExpectEnds();
}

TEST_F(StrangersTest, ConnectionsWithoutASessionToTheControlPort) {
  StartDaemon(/*is_unix=*/false);
  ServeDuring(CrowdControlInHttp2);
  EXPECT_GT(daemon_->Metric("cairn_control_connections_total{outcome=\"gave_way_without_session\""),
            0);
  ExpectEnds();
}

}  // namespace
}  // namespace cairn
