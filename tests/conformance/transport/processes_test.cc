// SPDX-License-Identifier: Apache-2.0
// Peers in processes of their own, killed and stopped at the worst moment.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/time/clock.h"
#include "tests/conformance/transport/peer.h"
#include "tests/conformance/transport/suite.h"
#include "tests/support/from_environment.h"

namespace cairn::transport {
namespace {

// How many peers are killed.
int Kills() { return FromEnvironment("CAIRN_TRANSPORT_KILLS", 40); }

class ProcessesTest : public TransportTest {
 protected:
  void SetUp() override {
    if (!transport_->crosses_processes()) {
      GTEST_SKIP() << "this transport stays within its process";
    }
  }

  void KillMany(const std::string& what, int count) {
    StartServer({.lanes = 2});
    daemon_.Store(KeyOf(1), Pattern(32 << 20, 1));
    // One first: lazy parts of the transport show up in the baseline.
    KillOne(what);
    const int fds = FdCount();
    const int mappings = MappingCount("");
    for (int i = 0; i < count; ++i) {
      KillOne(what);
    }
    EXPECT_EQ(FdCount(), fds);
    EXPECT_LT(MappingCount(""), mappings + count);  // the heap may grow; a leak is one a peer
    EXPECT_EQ(MappingCount("memfd:cairn-region"), 0);
    EXPECT_EQ(daemon_.peers_gone.load(), count + 1);
    // Others' work goes on.
    const auto connection = Connect();
    const std::vector<std::byte> bytes = Pattern(1 << 20, 5);
    Call put;
    put.payload = bytes;
    EXPECT_EQ(Exchange(*connection, put, PutFrame(1, KeyOf(5), bytes)), absl::OkStatus());
    EXPECT_EQ(daemon_.mismatches.load(), 0);
  }

 private:
  void KillOne(const std::string& what) {
    const int gone = daemon_.peers_gone.load();
    {
      PeerProcess peer(server_->address(), what);
      ASSERT_TRUE(peer.AwaitBegun());
      peer.Signal(SIGKILL);
    }
    EXPECT_TRUE(WaitFor([&] { return daemon_.peers_gone.load() == gone + 1 && IsAtRest(); },
                        absl::Seconds(2)));
    EXPECT_EQ(Metric("cairn_transport_peers"), 0);
    EXPECT_EQ(Metric("cairn_transport_region_bytes"), 0);
  }
};

TEST_F(ProcessesTest, KilledWhilePutting) { KillMany("put", Kills()); }
TEST_F(ProcessesTest, KilledWhileGetting) { KillMany("get", Kills()); }

TEST_F(ProcessesTest, AStoppedPeerHoldsNothingPastTheDeadline) {
  std::vector<std::byte> target(32 << 20);
  std::atomic<bool> is_over{false};
  std::atomic<bool> has_arrived{false};
  std::atomic<bool> may_receive{false};
  absl::Status end;  // read once is_over
  absl::Duration taken;
  std::optional<Arrival> kept;
  daemon_.intercept = [&](Lane&, Arrival& arrival, const proto::Frame& frame) {
    if (frame.kind() != proto::FrameKind::kPut) {
      return false;
    }
    kept.emplace(std::move(arrival));
    has_arrived.store(true);
    return true;
  };
  StartServer();
  PeerProcess peer(server_->address(), "stop");
  ASSERT_TRUE(peer.AwaitBegun());
  peer.AwaitStopped();
  ASSERT_TRUE(WaitFor([&] { return has_arrived.load(); }));
  ASSERT_EQ(server_->lane(0).Submit([&](Lane& lane) {
    const absl::Time begun = MonotonicNow();
    lane.Receive(std::move(*kept), target, begun + absl::Milliseconds(300),
                 [&, begun](const Received& received) {
                   end = received.status;
                   taken = MonotonicNow() - begun;
                   is_over.store(true);
                 });
    kept.reset();
  }),
            absl::OkStatus());
  ASSERT_TRUE(WaitFor([&] { return is_over.load(); }));
  EXPECT_LE(taken, absl::Milliseconds(600));
  // A transport that moves without its peer may be done in time.
  EXPECT_TRUE(end.code() == absl::StatusCode::kDeadlineExceeded ||
              (end.ok() && transport_->moves_without_peer()))
      << end;
  // The memory is free: whatever the peer does when it runs again, no byte changes.
  std::fill(target.begin(), target.end(), std::byte{0xEE});
  peer.Signal(SIGCONT);
  const absl::Time until = MonotonicNow() + absl::Seconds(1);
  while (MonotonicNow() < until) {
    ASSERT_TRUE(std::all_of(target.begin(), target.end(),
                            [](std::byte byte) { return byte == std::byte{0xEE}; }));
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_TRUE(WaitFor([&] { return IsAtRest(); }));
}

}  // namespace
}  // namespace cairn::transport
