// SPDX-License-Identifier: Apache-2.0
// What the UCX transport promises of each transfer, in one process.
#include <algorithm>
#include <thread>

#include "codecs/checksum/checksum.h"
#include "tests/fault/ucx/ucx_fixture.h"
#include "tests/support/sanitizer.h"

namespace cairn::transport {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * 1024;

class UcxTransferTest : public UcxFixture {};

TEST_F(UcxTransferTest, PutsAndGetsOfEverySizeArriveWhole) {
  StartServer();
  const auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  uint64_t seq = 2;
  for (const size_t bytes : {size_t{0}, size_t{1}, 8 * kKiB - 1, 8 * kKiB, 8 * kKiB + 1, 64 * kKiB,
                             256 * kKiB - 1, 256 * kKiB, 256 * kKiB + 1, 4 * kMiB, 32 * kMiB + 1}) {
    SCOPED_TRACE(bytes);
    const std::vector<std::byte> payload = Pattern(bytes);
    EXPECT_EQ(Put(*connection, payload, seq++), absl::OkStatus());
    const std::vector<PutOutcome> outcomes = store.TakeOutcomes();
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_TRUE(outcomes[0].is_crc_right);
    std::vector<std::byte> target(bytes, std::byte{0xEE});
    EXPECT_EQ(Get(*connection, target, seq++), absl::OkStatus());
    EXPECT_TRUE(target == payload);
  }
}

TEST_F(UcxTransferTest, CallsInFlightEndInAnyOrderAndTheWindowHolds) {
  StartServer();
  const auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const int window = connection->window();
  ASSERT_EQ(window, 16);
  std::vector<Call> calls(static_cast<size_t>(window) + 1);
  std::vector<std::vector<std::byte>> memory;
  for (size_t i = 0; i < calls.size(); ++i) memory.push_back(Pattern((i + 1) * 100 * kKiB));
  for (size_t i = 0; i < calls.size(); ++i) {
    Call& call = calls[i];
    call.deadline = MonotonicNow() + absl::Seconds(20);
    if (i % 2 == 0) {
      call.request = PutRequest(i + 2, memory[i]);
      call.payload = memory[i];
    } else {
      std::ranges::fill(memory[i], std::byte{0});
      call.request = GetRequest(i + 2, memory[i].size());
      call.target = memory[i];
    }
    const absl::Status status = connection->Start(&call);
    EXPECT_EQ(status.ok(), i < static_cast<size_t>(window)) << status;
  }
  for (size_t i = 0; i + 1 < calls.size(); ++i) {
    Finish(*connection, calls[i]);
    EXPECT_EQ(calls[i].status, absl::OkStatus());
    EXPECT_EQ(SeqOf(calls[i].reply), i + 2);
    EXPECT_TRUE(memory[i] == Pattern(memory[i].size())) << i;
  }
}

// What the sender hears is the daemon's reply, whatever UCX says of the send.
TEST_F(UcxTransferTest, DeliveryIsNotCompletion) {
  StartServer();
  const auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const std::vector<std::byte> payload = Pattern(4 * kMiB);
  store.put_mode = PutMode::kRefuse;
  EXPECT_TRUE(absl::IsResourceExhausted(Put(*connection, payload, 2)));
  EXPECT_FALSE(connection->broken());
  store.put_mode = PutMode::kDropSilently;
  const absl::Time started = MonotonicNow();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Put(*connection, payload, 3, absl::Milliseconds(300))));
  EXPECT_LT(MonotonicNow() - started, absl::Seconds(1));
  EXPECT_TRUE(connection->broken());
  EXPECT_TRUE(WaitFor([&] { return store.peers_gone == 1; }));
  EXPECT_EQ(Metric("cairn_transport_arrivals"), 0);
}

TEST_F(UcxTransferTest, ArrivalsOverTheLimitAreRefusedWithAReply) {
  options.limits.arrivals_held_max = 2;
  StartServer();
  store.put_mode = PutMode::kHold;
  const auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const std::vector<std::byte> payload = Pattern(kMiB);
  std::vector<Call> calls(5);
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].request = PutRequest(i + 2, payload);
    calls[i].payload = payload;
    calls[i].deadline = MonotonicNow() + absl::Seconds(20);
    ASSERT_EQ(connection->Start(&calls[i]), absl::OkStatus());
  }
  for (size_t i = 2; i < calls.size(); ++i) {
    Finish(*connection, calls[i]);
    ASSERT_EQ(calls[i].status, absl::OkStatus());
    EXPECT_TRUE(
        absl::IsResourceExhausted(proto::StatusOf(*proto::ParseFrame(calls[i].reply.bytes()))));
  }
  EXPECT_EQ(Metric("cairn_transport_arrivals"), 2);
  EXPECT_EQ(Metric("cairn_transport_arrivals_refused_total"), 3);
  // The transport may answer the last before it hands the first to the store: a hello and two puts.
  ASSERT_TRUE(WaitFor([&] { return store.arrivals == 3; }));
  ASSERT_EQ(server->lane(0).Submit([this](Lane& lane) { store.TakeHeld(lane); }), absl::OkStatus());
  for (size_t i = 0; i < 2; ++i) {
    Finish(*connection, calls[i]);
    EXPECT_EQ(calls[i].status, absl::OkStatus());
    EXPECT_TRUE(proto::StatusOf(*proto::ParseFrame(calls[i].reply.bytes())).ok());
  }
}

TEST_F(UcxTransferTest, HeldPayloadsOfALostPeerAreLetGo) {
  StartServer();
  store.put_mode = PutMode::kHold;
  const std::vector<std::byte> payload = Pattern(kMiB);
  std::vector<Call> calls(4);
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].request = PutRequest(i + 2, payload);
    calls[i].payload = payload;
    calls[i].deadline = MonotonicNow() + absl::Seconds(20);
    ASSERT_EQ(connection->Start(&calls[i]), absl::OkStatus());
  }
  while (store.arrivals < 5) connection->Poll(MonotonicNow() + absl::Milliseconds(1));
  EXPECT_EQ(Metric("cairn_transport_arrivals"), 4);
  connection.reset();
  for (const Call& call : calls) {
    EXPECT_TRUE(call.over());
    EXPECT_TRUE(absl::IsUnavailable(call.status)) << call.status;
  }
  EXPECT_TRUE(WaitFor([&] { return store.peers_gone == 1; }));
  EXPECT_EQ(Metric("cairn_transport_arrivals"), 0);
  // Taken too late: answered, not moved.
  ASSERT_EQ(server->lane(0).Submit([this](Lane& lane) { store.TakeHeld(lane); }), absl::OkStatus());
  EXPECT_TRUE(WaitFor([&] { return store.receives_over == 4; }));
  for (const PutOutcome& outcome : store.TakeOutcomes()) {
    EXPECT_TRUE(absl::IsUnavailable(outcome.status)) << outcome.status;
  }
}

// 10,000 requests are queued faster than they are sent; header storage is freed or reused as soon
// as UCX says so, and AddressSanitizer watches.
TEST_F(UcxTransferTest, HeadersLiveUntilTheirSendIsOver) {
  StartServer();
  constexpr size_t kCalls = 10'000;
  std::vector<Call> calls(16);  // outlives the connection, which ends those still in flight
  const auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  uint64_t seq = 2;
  size_t over = 0;
  while (over < kCalls) {
    for (Call& call : calls) {
      if (call.over()) {
        ASSERT_EQ(call.status, absl::OkStatus());
        const absl::StatusOr<proto::Frame> reply = proto::ParseFrame(call.reply.bytes());
        ASSERT_TRUE(reply.ok()) << reply.status();
        ++over;
      }
      if (call.over() || call.deadline == absl::InfinitePast()) {
        call = Call{};
        call.request = PingRequest(seq++);
        call.deadline = MonotonicNow() + absl::Seconds(30);
        ASSERT_EQ(connection->Start(&call), absl::OkStatus());
      }
    }
    connection->Poll(MonotonicNow() + absl::Seconds(1));
  }
}

TEST_F(UcxTransferTest, BreakEndsThePeersTransfersAndFreesItsMemory) {
  options.limits.payload_bytes_max = 512 * kMiB;
  StartServer();
  store.on_moving = [this] {
    static_cast<void>(server->lane(0).Submit([](Lane& lane) {
      // The first peer of a lane of a UCX server.
      lane.Break((uint64_t{1} << 62) | (uint64_t{1} << 8));
    }));
  };
  const auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const std::vector<std::byte> payload(256 * kMiB, std::byte{1});
  EXPECT_TRUE(absl::IsUnavailable(Put(*connection, payload, 2)));
  EXPECT_TRUE(WaitFor([&] { return store.receives_over == 1 && store.peers_gone == 1; }));
  const std::vector<PutOutcome> outcomes = store.TakeOutcomes();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(outcomes[0].status)) << outcomes[0].status;
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_peers") == 0; }));
  EXPECT_EQ(Metric("cairn_transport_quarantine_bytes"), 0);
}

// UCX owes a callback and does not call: after two seconds the lane starts over, the memory is
// free, and new clients are served.
TEST_F(UcxTransferTest, ALaneWithAStuckTransferStartsOver) {
  std::atomic<int> lost{0};
  StartServer({.lost_completions = &lost});
  {
    const auto bystander = Connect();
    const auto connection = Connect();
    ASSERT_NE(connection, nullptr);
    lost = 1;
    store.deadline_ms = 200;
    const std::vector<std::byte> payload = Pattern(4 * kMiB);
    EXPECT_FALSE(Put(*connection, payload, 2, absl::Seconds(10)).ok());
    EXPECT_EQ(store.receives_over, 0);
    EXPECT_EQ(Metric("cairn_transport_quarantine_bytes"), 4.0 * kMiB);
    EXPECT_TRUE(WaitFor([&] { return store.receives_over == 1; }, absl::Seconds(4)));
    EXPECT_EQ(Metric("cairn_transport_stuck_transfers_total"), 1);
    EXPECT_EQ(Metric("cairn_transport_quarantine_bytes"), 0);
    EXPECT_TRUE(WaitFor([&] { return store.peers_gone == 2; }));
    bystander->Poll(MonotonicNow() + absl::Seconds(2));
    EXPECT_TRUE(bystander->broken());
  }
  store.deadline_ms = 10'000;
  const auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  EXPECT_EQ(Put(*connection, Pattern(4 * kMiB), 3), absl::OkStatus());
}

TEST_F(UcxTransferTest, QuarantineIsBounded) {
  std::atomic<int> lost{0};
  options.limits.quarantine_bytes_max = 2 * kMiB;
  StartServer({.lost_completions = &lost});
  const auto victim = Connect();
  const auto other = Connect();
  ASSERT_TRUE(victim != nullptr && other != nullptr);
  lost = 1;
  store.deadline_ms = 100;
  const std::vector<std::byte> payload = Pattern(4 * kMiB);
  EXPECT_FALSE(Put(*victim, payload, 2, absl::Seconds(10)).ok());
  // Until the lane starts over, nothing more is received.
  EXPECT_FALSE(Put(*other, payload, 2, absl::Seconds(1)).ok());
  const std::vector<PutOutcome> outcomes = store.TakeOutcomes();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(outcomes[0].status)) << outcomes[0].status;
}

TEST_F(UcxTransferTest, IdlePeersArePingedAndSilentOnesClosed) {
  StartServer({.ping_interval = absl::Milliseconds(200)});
  const auto talker = Connect();
  const auto silent = Connect();
  ASSERT_TRUE(talker != nullptr && silent != nullptr);
  const absl::Time started = MonotonicNow();
  while (store.peers_gone < 1 && MonotonicNow() - started < absl::Seconds(5)) {
    talker->Poll(MonotonicNow() + absl::Milliseconds(20));
  }
  EXPECT_GT(MonotonicNow() - started, absl::Milliseconds(500));
  EXPECT_EQ(Metric("cairn_transport_peers"), 1);
  talker->Poll(MonotonicNow() + absl::Milliseconds(500));
  EXPECT_FALSE(talker->broken());
  EXPECT_EQ(store.peers_gone, 1);
  // The one that was closed while idle opens itself again.
  EXPECT_EQ(Put(*silent, Pattern(kMiB), 2), absl::OkStatus());
  EXPECT_EQ(Metric("cairn_transport_peers_opened_total"), 3);
}

TEST_F(UcxTransferTest, PeersOverTheLimitAreRejected) {
  options.limits.peers_max = 2;
  StartServer();
  const auto first = Connect();
  auto second = Connect();
  proto::HelloReply reply;
  const auto third = UcxConnection::Connect("127.0.0.1", port, HelloFrame(), {},
                                            MonotonicNow() + absl::Seconds(5), &reply);
  EXPECT_TRUE(absl::IsUnavailable(third.status())) << third.status();
  second.reset();
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_peers") == 1; }));
  EXPECT_NE(Connect(), nullptr);
}

TEST_F(UcxTransferTest, NobodyListensIsUnavailable) {
  StartServer();
  server->Stop();
  proto::HelloReply reply;
  const auto connection = UcxConnection::Connect("127.0.0.1", port, HelloFrame(), {},
                                                 MonotonicNow() + absl::Seconds(5), &reply);
  EXPECT_TRUE(absl::IsUnavailable(connection.status())) << connection.status();
}

TEST_F(UcxTransferTest, StopUnderLoadEndsEveryTransfer) {
  options.limits.payload_bytes_max = 512 * kMiB;
  options.limits.lanes = 2;
  StartServer();
  std::vector<std::jthread> clients;
  std::atomic<int> begun{0}, ended{0};
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([this, &begun, &ended] {
      std::vector<std::byte> memory(16 * kMiB, std::byte{1});
      std::vector<Call> calls(4);
      const auto connection = Connect();
      for (size_t c = 0; c < calls.size(); ++c) {
        calls[c].deadline = MonotonicNow() + absl::Seconds(30);
        if (c % 2 == 0) {
          calls[c].request = PutRequest(c + 2, memory);
          calls[c].payload = memory;
        } else {
          calls[c].request = GetRequest(c + 2, 4 * kMiB);
          calls[c].target = std::span(memory).subspan(c * 4 * kMiB, 4 * kMiB);
        }
        ASSERT_EQ(connection->Start(&calls[c]), absl::OkStatus());
        ++begun;
      }
      for (Call& call : calls) {
        Finish(*connection, call);
        ++ended;
      }
    });
  }
  ASSERT_TRUE(WaitFor(
      [&] { return begun == 16 && store.receives_started >= 4 && store.gets_started >= 4; }));
  const absl::Time started = MonotonicNow();
  server->Stop();
  EXPECT_LT(MonotonicNow() - started, kSlowdown * absl::Seconds(3));
  clients.clear();
  EXPECT_EQ(ended, 16);
  EXPECT_EQ(store.receives_over, store.receives_started);
  EXPECT_EQ(Metric("cairn_transport_quarantine_bytes"), 0);
  EXPECT_EQ(Metric("cairn_transport_peers"), 0);
  EXPECT_TRUE(absl::IsUnavailable(server->lane(0).Submit([](Lane&) {})));
}

}  // namespace
}  // namespace cairn::transport
