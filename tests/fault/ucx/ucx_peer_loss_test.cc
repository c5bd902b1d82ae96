// SPDX-License-Identifier: Apache-2.0
// Peers that are killed or stopped in the middle of a payload, in both roles, and links that go
// dead.
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "base/log.h"
#include "tests/fault/ucx/ucx_fixture.h"
#include "tests/fault/ucx/ucx_process.h"
#include "tests/support/from_environment.h"

namespace cairn::transport {
namespace {

constexpr size_t kMiB = 1024 * 1024;

int Kills(int usual) { return FromEnvironment("CAIRN_UCX_KILLS", usual); }

size_t OpenFds() {
  size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

double RssMiB() {
  std::ifstream statm("/proc/self/statm");
  double pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / kMiB;
}

class UcxPeerLossTest : public UcxFixture {
 protected:
  // A client that puts or gets without end is killed as soon as a payload moves, again and again.
  void KillClients(const char* what) {
    StartServer();
    size_t fds = 0;
    double rss_mib = 0;
    const int kills = Kills(15);
    for (int i = 0; i < kills; ++i) {
      SCOPED_TRACE(i);
      std::atomic<bool>& moving = moving_;
      moving = false;
      UcxProcess client({what, std::to_string(port), std::to_string(32 * kMiB)});
      ASSERT_TRUE(WaitFor([&] { return moving.load(); }));
      client.Signal(SIGKILL);
      const absl::Time killed = MonotonicNow();
      ASSERT_NE(client.AwaitEnd(absl::Seconds(5)), -1);
      ASSERT_TRUE(WaitFor([&] { return store.peers_gone == i + 1; }));
      ASSERT_TRUE(WaitFor([&] {
        return store.receives_over == store.receives_started &&
               Metric("cairn_transport_peers") == 0;
      }));
      EXPECT_LT(MonotonicNow() - killed, absl::Seconds(1));
      EXPECT_EQ(Metric("cairn_transport_quarantine_bytes"), 0);
      EXPECT_EQ(Metric("cairn_transport_arrivals"), 0);
      if (i == kills / 2) {
        fds = OpenFds();
        rss_mib = RssMiB();
      }
    }
    EXPECT_LE(OpenFds(), fds + 1);  // the process above still held its pipe
    EXPECT_LT(RssMiB(), rss_mib + 64);
    for (const PutOutcome& outcome : store.TakeOutcomes()) {
      EXPECT_TRUE(outcome.is_crc_right || absl::IsUnavailable(outcome.status)) << outcome.status;
    }
  }

  void SetUp() override {
    store.on_moving = [this] { moving_ = true; };
  }

  std::atomic<bool> moving_{false};
};

TEST_F(UcxPeerLossTest, KilledWhilePutting) { KillClients("put"); }
TEST_F(UcxPeerLossTest, KilledWhileGetting) { KillClients("get"); }

TEST_F(UcxPeerLossTest, TheDaemonIsKilledWhileItReceivesOrSends) {
  std::vector<std::byte> memory(128 * kMiB, std::byte{1});
  for (int i = 0; i < Kills(4); ++i) {
    SCOPED_TRACE(i);
    UcxProcess daemon({"serve"});
    const uint16_t to = daemon.AwaitPort();
    ASSERT_NE(to, 0);
    Call call;
    call.deadline = MonotonicNow() + absl::Seconds(20);
    if (i % 2 == 0) {
      call.request = PutRequest(2, std::span(memory).first(1));
      call.payload = memory;
    } else {
      call.request = GetRequest(2, 64 * kMiB);
      call.target = std::span(memory).first(64 * kMiB);
    }
    const auto connection = Connect(to);
    ASSERT_NE(connection, nullptr);
    ASSERT_EQ(connection->Start(&call), absl::OkStatus());
    std::jthread killer([&daemon] {
      EXPECT_EQ(daemon.AwaitLine(), "moving");
      daemon.Signal(SIGKILL);
    });
    const absl::Time started = MonotonicNow();
    Finish(*connection, call);
    killer.join();
    EXPECT_TRUE(absl::IsUnavailable(call.status) || (i % 2 == 1 && call.status.ok()))
        << call.status;
    EXPECT_LT(MonotonicNow() - started, absl::Seconds(2));
    connection->Poll(MonotonicNow() + absl::Seconds(1));
    EXPECT_TRUE(connection->broken());
  }
}

// The daemon receives from a client that has stopped; the memory is painted when it is free, and
// stays as painted when the client goes on.
TEST_F(UcxPeerLossTest, NothingLandsLateFromAStoppedClient) {
  options.limits.payload_bytes_max = 512 * kMiB;
  StartServer();
  store.is_target_kept = true;
  store.deadline_ms = 300;
  UcxProcess client({"put", std::to_string(port), std::to_string(128 * kMiB)});
  ASSERT_TRUE(WaitFor([&] { return moving_.load(); }));
  client.Signal(SIGSTOP);
  const absl::Time started = MonotonicNow();
  ASSERT_TRUE(WaitFor([&] { return store.receives_over == 1; }));
  EXPECT_LT(MonotonicNow() - started, absl::Seconds(1));
  const std::vector<PutOutcome> outcomes = store.TakeOutcomes();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(outcomes[0].status)) << outcomes[0].status;
  ASSERT_EQ(store.targets().size(), 1u);
  std::vector<std::byte>& target = store.targets()[0];
  std::ranges::fill(target, std::byte{0x5C});
  client.Signal(SIGCONT);
  EXPECT_NE(client.AwaitEnd(absl::Seconds(5)), -1);             // its connection is gone
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // nothing may happen
  EXPECT_TRUE(std::ranges::all_of(target, [](std::byte b) { return b == std::byte{0x5C}; }));
}

// The same from the client's side, with an environment that asks for shared memory and CMA: with
// them the daemon would go on copying from, or into, memory that is ours again.
TEST_F(UcxPeerLossTest, NothingMovesLateToOrFromAStoppedDaemon) {
  setenv("UCX_TLS", "all", 1);
  setenv("UCX_CMA_MEMORY_INVALIDATE", "y", 1);
  setenv("UCX_MM_ERROR_HANDLING", "y", 1);
  for (const bool is_put : {true, false}) {
    SCOPED_TRACE(is_put);
    UcxProcess daemon({"serve"});
    const uint16_t to = daemon.AwaitPort();
    std::vector<std::byte> memory(128 * kMiB, std::byte{1});
    Call call;
    if (is_put) {
      call.request = PutRequest(2, std::span(memory).first(1));
      call.payload = memory;
    } else {
      call.request = GetRequest(2, 64 * kMiB);
      call.target = std::span(memory).first(64 * kMiB);
    }
    const auto connection = Connect(to);
    ASSERT_NE(connection, nullptr);
    call.deadline = MonotonicNow() + absl::Milliseconds(500);
    ASSERT_EQ(connection->Start(&call), absl::OkStatus());
    std::jthread stopper([&daemon] {
      EXPECT_EQ(daemon.AwaitLine(), "moving");
      daemon.Signal(SIGSTOP);
    });
    Finish(*connection, call);
    stopper.join();
    EXPECT_FALSE(is_put && call.status.ok());
    EXPECT_TRUE(call.status.ok() || absl::IsDeadlineExceeded(call.status)) << call.status;
    std::ranges::fill(memory, std::byte{0x5C});
    daemon.Signal(SIGCONT);
    connection->Poll(MonotonicNow() + absl::Milliseconds(500));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // nothing may happen
    EXPECT_TRUE(std::ranges::all_of(memory, [](std::byte b) { return b == std::byte{0x5C}; }));
  }
}

TEST_F(UcxPeerLossTest, ConnectingToAStoppedDaemonEndsAtTheDeadline) {
  UcxProcess daemon({"serve"});
  const uint16_t to = daemon.AwaitPort();
  daemon.Signal(SIGSTOP);
  const absl::Time started = MonotonicNow();
  proto::HelloReply reply;
  const auto connection = UcxConnection::Connect("127.0.0.1", to, HelloFrame(), {},
                                                 MonotonicNow() + absl::Milliseconds(300), &reply);
  EXPECT_TRUE(absl::IsDeadlineExceeded(connection.status())) << connection.status();
  EXPECT_LT(MonotonicNow() - started, absl::Seconds(1));
}

// A cable is pulled while a payload moves: UCX says nothing, our deadlines do. Client and daemon
// are the two ends of a veth pair in network namespaces of their own.
TEST_F(UcxPeerLossTest, AHalfOpenLinkEndsAtTheDeadline) {
  const auto run = [](const std::string& command) {
    return system((command + " >/dev/null 2>&1").c_str()) == 0;
  };
  // A mount namespace too: UCX looks for interfaces in /sys, which has to show the new ones.
  if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0 ||
      mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0 || !run("ip link set lo up") ||
      !run("ip link add cairn0 type veth peer name cairn1")) {
    GTEST_SKIP() << "needs CAP_SYS_ADMIN and CAP_NET_ADMIN, ip and veth";
  }
  // The daemon's thread and its sockets stay in this namespace; the client runs in one below it.
  ASSERT_TRUE(run("ip addr add 10.77.0.1/24 dev cairn0 && ip link set cairn0 up"));
  const std::string name = "cairn-test-" + std::to_string(getpid());
  ASSERT_TRUE(run("ip netns add " + name));
  struct Cleanup {
    const std::string& name;
    ~Cleanup() { EXPECT_EQ(system(("ip netns del " + name).c_str()), 0); }
  };
  const Cleanup cleanup{name};
  ASSERT_TRUE(run("ip link set cairn1 netns " + name));
  ASSERT_TRUE(run("ip netns exec " + name +
                  " sh -c 'ip addr add 10.77.0.2/24 dev cairn1; ip link set cairn1 up'"));
  options.host = "10.77.0.1";
  options.limits.payload_bytes_max = 512 * kMiB;
  store.deadline_ms = 700;
  // A client that is between two transfers when the link dies is found by its pings.
  auto started = StartUcxServer(options, {.ping_interval = absl::Milliseconds(300)}, store);
  ASSERT_TRUE(started.ok()) << started.status();
  server = *std::move(started);
  const std::string address = server->address();
  const std::string to = address.substr(address.rfind(':') + 1);
  const std::vector<std::string> within = {"ip", "netns", "exec", name};
  const UcxProcess putting({"put", to, std::to_string(64 * kMiB)},
                           {{"CAIRN_TEST_HOST", "10.77.0.1"}}, within);
  const UcxProcess getting({"get", to, std::to_string(64 * kMiB)},
                           {{"CAIRN_TEST_HOST", "10.77.0.1"}}, within);
  ASSERT_TRUE(WaitFor([&] { return store.receives_started > 0 && store.gets_started > 0; }));
  EXPECT_EQ(Metric("cairn_transport_peers"), 2);
  ASSERT_TRUE(run("ip netns exec " + name + " ip link set cairn1 down"));
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_peers") == 0; }, absl::Seconds(5)));
  EXPECT_TRUE(WaitFor([&] {
    return store.receives_over == store.receives_started && store.replies_over == store.arrivals;
  }));
  EXPECT_EQ(Metric("cairn_transport_quarantine_bytes"), 0);
}

}  // namespace
}  // namespace cairn::transport
