// SPDX-License-Identifier: Apache-2.0
// Clients of the local transport that take too much, change what they gave, do not read, or go:
// limits hold, and what they had comes back.
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "tests/conformance/transport/local_hostile.h"
#include "transport/local/greeter.h"
#include "transport/local/lane.h"

namespace cairn::transport {
namespace {

using LocalGreedyTest = LocalHostileTest;

TEST_F(LocalGreedyTest, MemoryInAllIsLimitedAndComesBack) {
  StartServer({.region_bytes_max = kRegionBytes, .regions_bytes_max = 3 * kRegionBytes});
  {
    const std::shared_ptr<ClientRegion> regions[] = {*ClientRegion::Make(kRegionBytes),
                                                     *ClientRegion::Make(kRegionBytes),
                                                     *ClientRegion::Make(kRegionBytes)};
    const Fd second = RawOpen(*regions[0]);
    const Fd third = RawOpen(*regions[1]);
    const Fd fourth = Raw();
    ASSERT_TRUE(SendPacket(fourth.get(), HelloMessage().bytes(), regions[2]->memfd()).ok());
    EXPECT_EQ(Answer(fourth).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(Metric("cairn_transport_region_bytes"), 3 * kRegionBytes);
  }
  ExpectUnharmed();
  EXPECT_NE(Connect(), nullptr);
}

TEST_F(LocalGreedyTest, ASourceThatChangesDuringThePut) {
  StartServer();
  auto region = *ClientRegion::Make(kRegionBytes);
  Fd socket = RawOpen(*region);
  std::atomic<bool> is_over{false};
  std::thread liar([&] {
    for (uint64_t i = 0; !is_over.load(); i = i * 25214903917 + 11) {
      *reinterpret_cast<volatile uint64_t*>(region->At(i % kRegionBytes / 8 * 8)) = i;
    }
  });
  int stored = 0, refused = 0;
  for (uint64_t seq = 1; seq <= 200; ++seq) {
    const Envelope envelope{Direction::kRequest, 0, kRegionBytes, 0, 0};
    // What the bytes were a moment ago. (TestDaemon checks that the CRC it is given is that of its
    // own copy.)
    const std::vector<std::byte> now(region->At(0), region->At(0) + kRegionBytes);
    const MessageBytes message =
        Serialize(envelope, proto::Serialize(PutFrame(seq, KeyOf(2), now)));
    ASSERT_TRUE(SendPacket(socket.get(), message.bytes()).ok());
    const absl::Status answer = Answer(socket);
    (answer.ok() ? stored : refused) += 1;
    EXPECT_TRUE(answer.ok() || absl::IsDataLoss(answer)) << answer;
  }
  is_over.store(true);
  liar.join();
  EXPECT_GT(refused, 0);
  EXPECT_EQ(daemon_.mismatches.load(), refused);
  socket.Reset();
  region.reset();
  ExpectUnharmed();
}

TEST_F(LocalGreedyTest, AReaderThatDoesNotReadIsBroken) {
  StartServer();
  const auto region = *ClientRegion::Make(kRegionBytes);
  Fd socket = RawOpen(*region);
  proto::Frame ping;
  ping.body = proto::Ping{};
  // Until the daemon has broken us: our replies fill the socket, and it does not wait.
  EXPECT_TRUE(WaitFor([&] {
    ++ping.seq;
    SendPacket(socket.get(), Serialize({}, proto::Serialize(ping)).bytes()).IgnoreError();
    return daemon_.peers_gone.load() == 1;
  }));
  EXPECT_GT(ping.seq, 10u);
  socket.Reset();
  fds_ += 1;
  ExpectUnharmed();
}

TEST_F(LocalGreedyTest, RequestsThatAreNeverAnsweredAreLimited) {
  daemon_.intercept = [](Lane&, Arrival&, const proto::Frame& frame) {
    return frame.kind() == proto::FrameKind::kPing;
  };
  StartServer();
  const auto region = *ClientRegion::Make(kRegionBytes);
  Fd socket = RawOpen(*region);
  proto::Frame ping;
  ping.body = proto::Ping{};
  const MessageBytes message = Serialize({}, proto::Serialize(ping));
  int sent = 0;
  EXPECT_TRUE(WaitFor([&] {
    sent += SendPacket(socket.get(), message.bytes()).ok() ? 1 : 0;
    return daemon_.peers_gone.load() == 1;
  }));
  EXPECT_GE(sent, LocalLane::kUnansweredMax);
  socket.Reset();
  fds_ += 1;
  ExpectUnharmed();
}

TEST_F(LocalGreedyTest, AFloodOfSilentConnectionsKeepsNobodyOut) {
  StartServer({.lanes = 2, .peers_max = 32});
  {
    std::vector<Fd> flood;
    for (size_t i = 0; i < 2 * Greeter::kNewcomersMax; ++i) {
      flood.push_back(Raw());
    }
    EXPECT_EQ(Metric("cairn_transport_peers"), 1) << "they take no place of a client's";
    ExpectOthersServed();
    EXPECT_NE(Connect(), nullptr);
    EXPECT_TRUE(WaitFor([&] { return Dropped("gave_way") >= Greeter::kNewcomersMax; }));
    EXPECT_LE(Metric("cairn_transport_newcomers"), Greeter::kNewcomersMax);
    EXPECT_TRUE(absl::IsUnavailable(Answer(flood.front()))) << "the oldest has gone";
    // The others are put out without having said a word.
    EXPECT_TRUE(
        WaitFor([&] { return Metric("cairn_transport_newcomers") == 0; }, absl::Seconds(30)));
    EXPECT_EQ(Dropped("late") + Dropped("gave_way"), 2 * Greeter::kNewcomersMax);
  }
  ExpectUnharmed();
}

TEST_F(LocalGreedyTest, TooManyConnectionsAreToldSo) {
  StartServer({.peers_max = 2});
  const auto second = Connect();
  const auto region = *ClientRegion::Make(kRegionBytes);
  {
    const Fd third = Raw();
    ASSERT_TRUE(SendPacket(third.get(), HelloMessage().bytes(), region->memfd()).ok());
    EXPECT_EQ(Answer(third).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(Answer(third).code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(Dropped("too_many"), 1);
}

TEST_F(LocalGreedyTest, WithoutDescriptorsConnectionsWait) {
  StartServer();
  Fd late(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto region = *ClientRegion::Make(kRegionBytes);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(region->memfd()) + 1;  // the highest that is open
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::vector<Fd> fill;  // every lower number too
  for (int fd = dup(late.get()); fd >= 0; fd = dup(late.get())) {
    fill.emplace_back(fd);
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(path_.begin(), path_.end(), address.sun_path);
  ASSERT_EQ(connect(late.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  rusage begun{}, ended{};
  getrusage(RUSAGE_SELF, &begun);
  absl::SleepFor(absl::Milliseconds(500));  // to watch that the lane does not run hot meanwhile
  getrusage(RUSAGE_SELF, &ended);
  const absl::Duration cpu =
      absl::DurationFromTimeval(ended.ru_utime) - absl::DurationFromTimeval(begun.ru_utime) +
      absl::DurationFromTimeval(ended.ru_stime) - absl::DurationFromTimeval(begun.ru_stime);
  fill.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LE(cpu, absl::Milliseconds(100));
  ASSERT_TRUE(SendPacket(late.get(), HelloMessage().bytes(), region->memfd()).ok());
  EXPECT_EQ(Answer(late), absl::OkStatus());
  late.Reset();
  fds_ += 1;
  ExpectUnharmed();
}

TEST_F(LocalGreedyTest, AClientThatGoesMidCopyLeavesNothing) {
  StartServer();
  for (int i = 0; i < 200; ++i) {
    const auto region = *ClientRegion::Make(kRegionBytes);
    const Fd socket = RawOpen(*region);
    const Envelope envelope{Direction::kRequest, 0, kRegionBytes, 0, kRegionBytes};
    for (uint64_t seq = 1; seq <= 4; ++seq) {
      const std::vector<std::byte> bytes(kRegionBytes);
      const proto::Frame frame =
          seq % 2 == 0 ? GetFrame(seq, KeyOf(1), kRegionBytes) : PutFrame(seq, KeyOf(3), bytes);
      SendPacket(socket.get(), Serialize(envelope, proto::Serialize(frame)).bytes()).IgnoreError();
    }
  }
  EXPECT_TRUE(WaitFor([&] { return daemon_.peers_gone.load() == 200; }));
  EXPECT_EQ(daemon_.transfers_begun.load(), daemon_.transfers_over.load());
  EXPECT_EQ(MappingCount("memfd:cairn-region"), 2);  // the good client's, on both sides
  ExpectUnharmed();
}

}  // namespace
}  // namespace cairn::transport
