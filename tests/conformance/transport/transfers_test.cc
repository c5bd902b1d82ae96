// SPDX-License-Identifier: Apache-2.0
// Bytes arrive, whole and unchanged, whatever their number and however many are on their way.
#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "codecs/checksum/checksum.h"
#include "tests/conformance/transport/suite.h"

namespace cairn::transport {
namespace {

using TransfersTest = TransportTest;

constexpr size_t kSizes[] = {0,
                             1,
                             (8 << 10) - 1,
                             8 << 10,
                             (8 << 10) + 1,
                             (256 << 10) - 1,
                             256 << 10,
                             (256 << 10) + 1,
                             4 << 20,
                             (32 << 20) + 1};

// Puts `bytes` out of `payload` and gets them into `target`.
void RoundTrip(Connection& connection, uint64_t number, std::span<std::byte> payload,
               std::span<std::byte> target) {
  const std::vector<std::byte> bytes = Pattern(payload.size(), number);
  std::copy(bytes.begin(), bytes.end(), payload.begin());
  Call put;
  put.payload = payload;
  ASSERT_EQ(Exchange(connection, put, PutFrame(2 * number, KeyOf(number), bytes)),
            absl::OkStatus());

  std::fill(target.begin(), target.end(), std::byte{0xEE});
  Call get;
  get.target = target;
  ASSERT_EQ(Exchange(connection, get, GetFrame(2 * number + 1, KeyOf(number), target.size())),
            absl::OkStatus());
  ASSERT_EQ(get.reply_payload_bytes, bytes.size());
  const auto reply = proto::ParseFrame(get.reply.bytes());
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->payload_crc32c, codecs::Crc32c(target.first(bytes.size())));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), target.begin()));
}

TEST_F(TransfersTest, EverySizeInBuffers) {
  StartServer();
  const auto connection = Connect();
  uint64_t number = 1;
  for (const size_t bytes : kSizes) {
    SCOPED_TRACE(bytes);
    const auto payload = connection->Allocate(bytes);
    const auto target = connection->Allocate(bytes);
    ASSERT_TRUE(payload.ok() && target.ok());
    ASSERT_EQ((*payload)->bytes().size(), bytes);
    RoundTrip(*connection, number++, (*payload)->bytes(), (*target)->bytes());
  }
  EXPECT_EQ(daemon_.mismatches.load(), 0);
}

TEST_F(TransfersTest, EverySizeInOrdinaryMemory) {
  StartServer();
  const auto connection = Connect();
  uint64_t number = 1;
  for (const size_t bytes : kSizes) {
    SCOPED_TRACE(bytes);
    // Odd addresses: nothing may lean on alignment.
    std::vector<std::byte> payload(bytes + 1), target(bytes + 1);
    RoundTrip(*connection, number++, std::span(payload).subspan(1), std::span(target).subspan(1));
  }
  EXPECT_EQ(daemon_.mismatches.load(), 0);
}

TEST_F(TransfersTest, ALargerTargetKeepsWhatIsPastThePayload) {
  StartServer();
  const auto connection = Connect();
  const std::vector<std::byte> bytes = Pattern(5000, 7);
  daemon_.Store(KeyOf(7), bytes);
  for (const bool in_buffer : {true, false}) {
    const auto buffer = connection->Allocate(20'000);
    ASSERT_TRUE(buffer.ok());
    std::vector<std::byte> ordinary(20'000);
    const std::span<std::byte> all = in_buffer ? (*buffer)->bytes() : std::span(ordinary);
    std::fill(all.begin(), all.end(), std::byte{0xEE});
    Call get;
    get.target = all.subspan(1000, 8000);
    ASSERT_EQ(Exchange(*connection, get, GetFrame(in_buffer, KeyOf(7), 8000)), absl::OkStatus());
    EXPECT_EQ(get.reply_payload_bytes, 5000u);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), get.target.begin()));
    const auto is_paint = [](std::byte byte) { return byte == std::byte{0xEE}; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + 1000, is_paint));
    EXPECT_TRUE(std::all_of(all.begin() + 6000, all.end(), is_paint));
  }
}

// Gets of blocks 0 to `count` - 1, started together; each is answered for itself.
void GetTogether(TestDaemon& daemon, Connection& connection, size_t count) {
  std::vector<std::vector<std::byte>> bytes(count), targets(count);
  std::vector<Call> calls(count);
  for (size_t i = 0; i < count; ++i) {
    const bool is_there = i % 7 != 3;
    bytes[i] = is_there ? Pattern(kSizes[i % 8], 500 + i) : std::vector<std::byte>();
    if (is_there) daemon.Store(KeyOf(i), bytes[i]);
    targets[i].resize(bytes[i].size() + 1);
    calls[i].target = targets[i];
    calls[i].deadline = MonotonicNow() + absl::Seconds(20);
    calls[i].may_wait = true;
    calls[i].request = proto::Serialize(GetFrame(100 + i, KeyOf(i), targets[i].size()));
    ASSERT_EQ(connection.Start(&calls[i]), absl::OkStatus());
  }
  for (size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    Await(connection, calls[i]);
    ASSERT_EQ(calls[i].status, absl::OkStatus());
    const auto reply = proto::ParseFrame(calls[i].reply.bytes());
    ASSERT_TRUE(reply.ok());
    EXPECT_EQ(reply->seq, 100 + i);
    EXPECT_EQ(proto::StatusOf(*reply).code(),
              i % 7 != 3 ? absl::StatusCode::kOk : absl::StatusCode::kNotFound);
    ASSERT_EQ(calls[i].reply_payload_bytes, bytes[i].size());
    EXPECT_TRUE(std::equal(bytes[i].begin(), bytes[i].end(), targets[i].begin()));
  }
}

TEST_F(TransfersTest, RequestsThatMayWaitLeaveTogether) {
  StartServer();
  const auto connection = Connect(64);
  GetTogether(daemon_, *connection, 40);
  EXPECT_EQ(Metric("cairn_transport_batches_total"), transport_->has_batches() ? 2 : 0)
      << "32 and 8";
}

TEST_F(TransfersTest, ADaemonThatTakesNoBatchesGetsNone) {
  daemon_.takes_batches = false;
  StartServer();
  const auto connection = Connect(64);
  GetTogether(daemon_, *connection, 40);
  EXPECT_EQ(Metric("cairn_transport_batches_total"), 0);
}

TEST_F(TransfersTest, ARequestThatMayNotWaitTakesTheWaitingAlong) {
  StartServer();
  const auto connection = Connect();
  std::vector<Call> calls(3);
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].deadline = MonotonicNow() + absl::Seconds(20);
    calls[i].may_wait = i < 2;
    calls[i].request = proto::Serialize(GetFrame(i, KeyOf(i), 0));
    ASSERT_EQ(connection->Start(&calls[i]), absl::OkStatus());
  }
  for (Call& call : calls) {
    Await(*connection, call);
    EXPECT_EQ(call.status, absl::OkStatus());
  }
  EXPECT_EQ(Metric("cairn_transport_batches_total"), transport_->has_batches() ? 1 : 0);
}

TEST_F(TransfersTest, WaitingRequestsEndWithTheirConnection) {
  StartServer();
  auto connection = Connect();
  Call call;
  call.deadline = MonotonicNow() + absl::Seconds(20);
  call.may_wait = true;
  call.request = proto::Serialize(GetFrame(1, KeyOf(1), 0));
  ASSERT_EQ(connection->Start(&call), absl::OkStatus());
  connection = nullptr;
  EXPECT_TRUE(call.over());
  EXPECT_EQ(call.status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(TransfersTest, EveryDepth) {
  StartServer();
  for (const size_t depth : {1, 2, 4, 8, 16}) {
    SCOPED_TRACE(depth);
    const auto connection = Connect(static_cast<uint32_t>(depth));
    ASSERT_EQ(connection->window(), static_cast<int>(depth));
    std::vector<std::vector<std::byte>> bytes(depth), targets(depth);
    std::vector<Call> calls(depth);
    for (uint64_t round = 0; round < 3; ++round) {
      for (size_t i = 0; i < depth; ++i) {
        const uint64_t number = depth * 1000 + round * 100 + i;
        bytes[i] = Pattern(kSizes[(i + round) % 9], number);
        calls[i] = Call();
        calls[i].payload = bytes[i];
        calls[i].deadline = MonotonicNow() + absl::Seconds(20);
        calls[i].request = proto::Serialize(PutFrame(number, KeyOf(number), bytes[i]));
        ASSERT_EQ(connection->Start(&calls[i]), absl::OkStatus());
      }
      for (size_t i = 0; i < depth; ++i) {
        Await(*connection, calls[i]);
        ASSERT_EQ(calls[i].status, absl::OkStatus());
        const uint64_t number = depth * 1000 + round * 100 + i;
        targets[i].assign(bytes[i].size(), std::byte{0xEE});
        calls[i] = Call();
        calls[i].target = targets[i];
        calls[i].deadline = MonotonicNow() + absl::Seconds(20);
        calls[i].request =
            proto::Serialize(GetFrame(number + 50, KeyOf(number), targets[i].size()));
        ASSERT_EQ(connection->Start(&calls[i]), absl::OkStatus());
      }
      for (size_t i = 0; i < depth; ++i) {
        Await(*connection, calls[i]);
        ASSERT_EQ(calls[i].status, absl::OkStatus());
        EXPECT_EQ(calls[i].reply_payload_bytes, bytes[i].size());
        EXPECT_TRUE(targets[i] == bytes[i]);
      }
    }
  }
  EXPECT_EQ(daemon_.mismatches.load(), 0);
}

TEST_F(TransfersTest, RepliesComeInAnyOrder) {
  std::vector<std::pair<ReplyTo, proto::Frame>> waiting;  // touched on the one lane only
  daemon_.intercept = [&](Lane& lane, Arrival& arrival, const proto::Frame& frame) {
    if (frame.kind() != proto::FrameKind::kGet) {
      return false;
    }
    waiting.emplace_back(arrival.reply_to(), frame);
    if (waiting.size() == 8) {
      for (; !waiting.empty(); waiting.pop_back()) {
        daemon_.AnswerGet(lane, waiting.back().first, waiting.back().second);
      }
    }
    return true;
  };
  StartServer();
  const auto connection = Connect();
  std::vector<Call> calls(8);
  std::vector<std::vector<std::byte>> targets(8);
  for (uint64_t i = 0; i < 8; ++i) {
    daemon_.Store(KeyOf(i), Pattern(10'000 * (i + 1), i));
    targets[i].resize(100'000);
    calls[i].target = targets[i];
    calls[i].deadline = MonotonicNow() + absl::Seconds(20);
    calls[i].request = proto::Serialize(GetFrame(i, KeyOf(i), 100'000));
    ASSERT_EQ(connection->Start(&calls[i]), absl::OkStatus());
  }
  for (uint64_t i = 0; i < 8; ++i) {
    Await(*connection, calls[i]);
    ASSERT_EQ(calls[i].status, absl::OkStatus());
    targets[i].resize(calls[i].reply_payload_bytes);
    EXPECT_TRUE(targets[i] == Pattern(10'000 * (i + 1), i));
  }
}

TEST_F(TransfersTest, TheWindowIsKept) {
  daemon_.intercept = [&](Lane&, Arrival&, const proto::Frame& frame) {
    return frame.kind() == proto::FrameKind::kPing;  // never answered
  };
  StartServer();
  std::vector<Call> calls(3);  // outlive the connection, as they are never over
  const auto connection = Connect(2);
  proto::Frame ping;
  ping.body = proto::Ping{};
  for (size_t i = 0; i < 3; ++i) {
    ping.seq = i;
    calls[i].request = proto::Serialize(ping);
    calls[i].deadline = MonotonicNow() + absl::Seconds(20);
    EXPECT_EQ(connection->Start(&calls[i]).code(),
              i < 2 ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
  }
  EXPECT_FALSE(calls[2].over());
}

TEST_F(TransfersTest, APayloadRefusedCostsNothingElse) {
  daemon_.intercept = [&](Lane& lane, Arrival& arrival, const proto::Frame& frame) {
    if (frame.kind() != proto::FrameKind::kPut || frame.seq % 2 == 0) {
      return false;
    }
    { const Arrival dropped = std::move(arrival); }
    daemon_.AnswerError(lane, {arrival.reply_to()}, absl::ResourceExhaustedError("try later"));
    return true;
  };
  StartServer();
  const auto connection = Connect();
  for (uint64_t seq = 0; seq < 20; ++seq) {
    const std::vector<std::byte> bytes = Pattern(seq < 10 ? 100'000 : 3'000'000, seq);
    Call put;
    put.payload = bytes;
    EXPECT_EQ(Exchange(*connection, put, PutFrame(seq, KeyOf(seq), bytes)).code(),
              seq % 2 == 0 ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(daemon_.stored.load(), 10);
  EXPECT_TRUE(WaitFor([&] { return IsAtRest(); }));
}

TEST_F(TransfersTest, ErrorsAndMissesTravelAsReplies) {
  StartServer();
  const auto connection = Connect();
  std::vector<std::byte> target(100);
  Call get;
  get.target = target;
  EXPECT_EQ(Exchange(*connection, get, GetFrame(1, KeyOf(9), 100)),
            absl::NotFoundError("no such block"));
  EXPECT_EQ(get.reply_payload_bytes, 0u);

  const std::vector<std::byte> bytes = Pattern(1000, 1);
  proto::Frame lie = PutFrame(2, KeyOf(1), bytes);
  lie.payload_crc32c ^= 1;
  Call put;
  put.payload = bytes;
  EXPECT_EQ(Exchange(*connection, put, lie).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(daemon_.Find(KeyOf(1)), nullptr);
}

TEST_F(TransfersTest, SeveralConnectionsShareTheLanes) {
  StartServer({.lanes = 2});
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < 6; ++i) {
    connections.push_back(Connect());
  }
  for (uint64_t i = 0; i < 30; ++i) {
    const std::vector<std::byte> bytes = Pattern(50'000, i);
    Call put;
    put.payload = bytes;
    ASSERT_EQ(Exchange(*connections[i % 6], put, PutFrame(i, KeyOf(i), bytes)), absl::OkStatus());
    std::vector<std::byte> target(50'000);
    Call get;
    get.target = target;
    ASSERT_EQ(Exchange(*connections[(i + 1) % 6], get, GetFrame(100 + i, KeyOf(i), 50'000)),
              absl::OkStatus());
    EXPECT_TRUE(target == bytes);
  }
}

}  // namespace
}  // namespace cairn::transport
