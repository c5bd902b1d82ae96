// SPDX-License-Identifier: Apache-2.0
// Every call and every transfer ends, in time, and its memory is free when it says so.
#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/mutex.h"
#include "tests/conformance/transport/suite.h"

namespace cairn::transport {
namespace {

using EndsTest = TransportTest;

bool IsPaint(std::span<const std::byte> bytes, std::byte paint) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == paint; });
}

// Keeps what a hook saw for the test's thread.
struct Seen {
  Mutex mutex;
  std::vector<ReplyTo> replies ABSL_GUARDED_BY(mutex);
  size_t Count() {
    const MutexLock lock(mutex);
    return replies.size();
  }
  ReplyTo First() {
    const MutexLock lock(mutex);
    return replies.front();
  }
};

TEST_F(EndsTest, ACallEndsAtItsDeadlineAndNothingLandsLater) {
  Seen seen;
  daemon_.intercept = [&](Lane&, Arrival& arrival, const proto::Frame& frame) {
    if (frame.kind() != proto::FrameKind::kGet) {
      return false;
    }
    const MutexLock lock(seen.mutex);
    seen.replies.push_back(arrival.reply_to());
    return true;  // answered after the deadline, below
  };
  StartServer();
  for (const bool in_buffer : {true, false}) {
    SCOPED_TRACE(in_buffer);
    {
      const MutexLock lock(seen.mutex);
      seen.replies.clear();
    }
    auto connection = Connect();
    auto buffer = connection->Allocate(1 << 20);
    ASSERT_TRUE(buffer.ok());
    std::vector<std::byte> ordinary(1 << 20);
    const std::span<std::byte> target = in_buffer ? (*buffer)->bytes() : std::span(ordinary);
    Call get;
    get.target = target;
    get.request = proto::Serialize(GetFrame(1, KeyOf(1), target.size()));
    const absl::Time begun = MonotonicNow();
    get.deadline = begun + absl::Milliseconds(300);
    ASSERT_EQ(connection->Start(&get), absl::OkStatus());
    Await(*connection, get);
    const absl::Duration taken = MonotonicNow() - begun;
    EXPECT_EQ(get.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_GE(taken, absl::Milliseconds(299));
    EXPECT_LE(taken, absl::Milliseconds(450));
    EXPECT_TRUE(connection->broken());
    Call more;
    more.request = get.request;
    more.deadline = MonotonicNow() + absl::Seconds(1);
    EXPECT_EQ(connection->Start(&more).code(), absl::StatusCode::kUnavailable);

    // The target is ours again: what the daemon sends now must not show.
    std::fill(target.begin(), target.end(), std::byte{0xEE});
    ASSERT_TRUE(WaitFor([&] { return seen.Count() > 0; }));
    const auto late = std::make_shared<std::vector<std::byte>>(Pattern(1 << 20, 3));
    ASSERT_EQ(server_->lane(0).Submit([&, late](Lane& lane) {
      proto::Frame reply;
      reply.seq = 1;
      reply.payload_bytes = late->size();
      reply.body = proto::GetReply{};
      daemon_.Answer(lane, seen.First(), reply, late);
    }),
              absl::OkStatus());
    const absl::Time until = MonotonicNow() + absl::Milliseconds(300);
    while (MonotonicNow() < until) {  // to watch that nothing happens
      ASSERT_TRUE(IsPaint(target, std::byte{0xEE}));
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_TRUE(WaitFor([&] { return IsAtRest(); }));
  }
}

TEST_F(EndsTest, PollReturnsInTimeWithNothingToDo) {
  StartServer();
  const auto connection = Connect();
  const absl::Time begun = MonotonicNow();
  connection->Poll(begun + absl::Milliseconds(100));
  const absl::Duration taken = MonotonicNow() - begun;
  EXPECT_GE(taken, absl::Milliseconds(95));
  EXPECT_LE(taken, absl::Milliseconds(250));
}

TEST_F(EndsTest, ABrokenPeerHearsOfItAndItsTransfersEnd) {
  std::atomic<PeerId> peer{0};
  daemon_.intercept = [&](Lane&, Arrival& arrival, const proto::Frame& frame) {
    peer.store(arrival.reply_to().peer);
    return frame.kind() == proto::FrameKind::kPing;  // never answered
  };
  StartServer();
  const auto connection = Connect();
  std::vector<Call> calls(4);
  proto::Frame ping;
  ping.body = proto::Ping{};
  for (size_t i = 0; i < 4; ++i) {
    ping.seq = i;
    calls[i].request = proto::Serialize(ping);
    calls[i].deadline = MonotonicNow() + absl::Seconds(30);
    ASSERT_EQ(connection->Start(&calls[i]), absl::OkStatus());
  }
  connection->Poll(MonotonicNow() + absl::Milliseconds(20));
  ASSERT_NE(peer.load(), 0u);
  ASSERT_EQ(server_->lane(0).Submit([&](Lane& lane) {
    lane.Break(peer.load());
    lane.Break(peer.load());  // once is enough, twice does no harm
    lane.Break(123456789);    // nobody
    // A reply to the broken peer is over with Unavailable, and not within this call.
    auto is_over = std::make_shared<bool>(false);
    proto::Frame pong;
    pong.body = proto::Pong{};
    daemon_.transfers_begun.fetch_add(1);
    lane.Reply({peer.load(), 0, 0, 0}, proto::Serialize(pong), {}, absl::InfiniteFuture(),
               [&, is_over](const absl::Status& status) {
                 *is_over = true;
                 EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
                 daemon_.transfers_over.fetch_add(1);
               });
    EXPECT_FALSE(*is_over);
  }),
            absl::OkStatus());
  for (Call& call : calls) {
    Await(*connection, call);
    EXPECT_EQ(call.status.code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_TRUE(connection->broken());
  EXPECT_TRUE(WaitFor([&] { return daemon_.peers_gone.load() == 1 && IsAtRest(); }));
  EXPECT_EQ(Metric("cairn_transport_peers"), 0);
}

TEST_F(EndsTest, AClosedConnectionIsNoticed) {
  StartServer();
  for (int i = 1; i <= 5; ++i) {
    Connect();
    EXPECT_TRUE(WaitFor([&] { return daemon_.peers_gone.load() == i; }));
  }
  EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_peers") == 0; }));
}

TEST_F(EndsTest, AConnectionDestroyedWithCallsInFlightEndsThem) {
  daemon_.intercept = [&](Lane&, Arrival&, const proto::Frame& frame) {
    return frame.kind() == proto::FrameKind::kGet;
  };
  StartServer();
  auto connection = Connect();
  std::vector<std::byte> target(1000);
  Call call;
  call.target = target;
  call.request = proto::Serialize(GetFrame(1, KeyOf(1), 1000));
  call.deadline = MonotonicNow() + absl::Seconds(30);
  ASSERT_EQ(connection->Start(&call), absl::OkStatus());
  auto buffer = connection->Allocate(100);
  ASSERT_TRUE(buffer.ok());
  (*buffer)->bytes()[99] = std::byte{7};
  connection.reset();
  EXPECT_TRUE(call.over());
  EXPECT_EQ(call.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*buffer)->bytes()[99], std::byte{7});  // outlives its connection
}

TEST_F(EndsTest, AnArrivalOfALostPeerIsHarmless) {
  std::optional<Arrival> kept;  // touched on the one lane only
  std::atomic<bool> is_kept{false};
  daemon_.intercept = [&](Lane&, Arrival& arrival, const proto::Frame& frame) {
    if (frame.kind() != proto::FrameKind::kPut) {
      return false;
    }
    kept.emplace(std::move(arrival));
    is_kept.store(true);
    return true;
  };
  StartServer();
  auto connection = Connect();
  const std::vector<std::byte> bytes = Pattern(1 << 20, 1);
  Call put;
  put.payload = bytes;
  put.request = proto::Serialize(PutFrame(1, KeyOf(1), bytes));
  put.deadline = MonotonicNow() + absl::Seconds(30);
  ASSERT_EQ(connection->Start(&put), absl::OkStatus());
  while (!is_kept.load()) {
    connection->Poll(MonotonicNow() + absl::Milliseconds(1));
  }
  connection.reset();
  ASSERT_TRUE(WaitFor([&] { return daemon_.peers_gone.load() == 1; }));
  std::atomic<bool> is_over{false};
  std::vector<std::byte> target(1 << 20);
  ASSERT_EQ(server_->lane(0).Submit([&](Lane& lane) {
    lane.Receive(std::move(*kept), target, MonotonicNow() + absl::Seconds(5),
                 [&](const Received& received) {
                   EXPECT_EQ(received.status.code(), absl::StatusCode::kUnavailable);
                   is_over.store(true);
                 });
    EXPECT_FALSE(is_over.load());
  }),
            absl::OkStatus());
  EXPECT_TRUE(WaitFor([&] { return is_over.load() && IsAtRest(); }));
  server_->Stop();
  kept.reset();
}

TEST_F(EndsTest, StopUnderLoadEndsEverythingWithinThreeSeconds) {
  StartServer({.lanes = 2});
  std::atomic<int> started{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c, connection = Connect()] {  // all of them before the server stops
      const std::vector<std::byte> bytes = Pattern(2 << 20, 1);
      std::vector<Call> calls(4);
      uint64_t seq = 0;
      const proto::Frame put = PutFrame(0, KeyOf(static_cast<uint64_t>(c)), bytes);
      while (!connection->broken()) {  // ends: the server stops
        for (Call& call : calls) {
          if (seq >= 4 && !call.over()) {
            continue;
          }
          call = Call();
          call.payload = bytes;
          proto::Frame frame = put;
          frame.seq = seq++;
          call.request = proto::Serialize(frame);
          call.deadline = MonotonicNow() + absl::Seconds(20);
          call.is_over = !connection->Start(&call).ok();
          started.fetch_add(1);
        }
        connection->Poll(MonotonicNow() + absl::Seconds(1));
      }
      for (const Call& call : calls) {
        EXPECT_TRUE(call.over());
      }
    });
  }
  EXPECT_TRUE(WaitFor([&] { return started.load() > 100; }, absl::Seconds(30)));
  const absl::Time begun = MonotonicNow();
  server_->Stop();
  EXPECT_LE(MonotonicNow() - begun, absl::Seconds(3));
  EXPECT_EQ(daemon_.transfers_begun.load(), daemon_.transfers_over.load());
  EXPECT_EQ(server_->lane(0).Submit([](Lane&) {}).code(), absl::StatusCode::kUnavailable);
  for (std::thread& client : clients) {
    client.join();
  }
  server_->Stop();  // once more does no harm
}

TEST_F(EndsTest, AConnectionLearnsThatTheServerStopped) {
  StartServer();
  const auto connection = Connect();
  server_->Stop();
  Call call;
  call.request = proto::Serialize(GetFrame(1, KeyOf(1), 0));
  call.deadline = MonotonicNow() + absl::Seconds(5);
  if (connection->Start(&call).ok()) {
    Await(*connection, call);
    EXPECT_EQ(call.status.code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_TRUE(connection->broken());
  EXPECT_FALSE(TryConnect(16, absl::Milliseconds(500)).ok());
}

}  // namespace
}  // namespace cairn::transport
