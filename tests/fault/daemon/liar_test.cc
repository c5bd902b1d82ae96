// SPDX-License-Identifier: Apache-2.0
// Clients that lie, over each data plane: each lie gets a typed error or a dropped connection, the
// daemon lives, an honest client goes on, and the memory comes back.
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "codecs/checksum/checksum.h"
#include "proto/frame_layout.h"
#include "tests/fault/daemon/liar_fixture.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

class LiarTest : public LiarFixture, public ::testing::WithParamInterface<Wire> {
 protected:
  LiarTest() : LiarFixture(GetParam()) {}

  // The peer was dropped, with a word of why. Over UCX the word may be lost: that it has left says
  // nothing of its arrival, and the connection goes at once.
  void ExpectDropped(const absl::Status& status, absl::StatusCode code) {
    EXPECT_TRUE(status.code() == code || (GetParam() == Wire::kUcx && absl::IsUnavailable(status)))
        << status;
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_data_peers_broken_total", 1, absl::Seconds(5)));
  }

  // Sends any bytes for a frame, over a new connection where the last lie has cost the old one.
  absl::Status TellBytes(const proto::FrameBytes& bytes) {
    if (connection_ == nullptr || connection_->broken()) connection_ = Dial(*liar_);
    if (connection_ == nullptr) return absl::InternalError("no connection");
    std::vector<std::byte> target(payload_.size());
    transport::Call call;
    call.request = bytes;
    call.payload = payload_;
    call.target = target;
    call.deadline = MonotonicNow() + absl::Seconds(10);
    if (const absl::Status status = connection_->Start(&call); !status.ok()) return status;
    while (!call.over()) connection_->Poll(call.deadline + absl::Seconds(1));
    EXPECT_FALSE(absl::IsDeadlineExceeded(call.status)) << "neither an answer nor an end";
    if (!call.status.ok()) return call.status;
    const auto reply = proto::ParseFrame(call.reply.bytes());
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? proto::StatusOf(*reply) : reply.status();
  }
};

INSTANTIATE_TEST_SUITE_P(Each, LiarTest, ::testing::ValuesIn(kWires),
                         [](const auto& info) { return WireName(info.param); });

TEST_P(LiarTest, AWrongTicketAtHello) {
  proto::Ticket ticket = liar_->ticket();
  ticket[3] ^= std::byte{1};
  const auto connection = liar_->DialOver(GetParam(), ticket);
  ExpectDropped(connection.status(), absl::StatusCode::kPermissionDenied);
}

TEST_P(LiarTest, AWrongTicketLater) {
  proto::Frame frame = LiarsPut();
  frame.ticket[0] ^= std::byte{1};
  ExpectDropped(Tell(frame), absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(IsPublished(2));
}

TEST_P(LiarTest, AnothersTicket) {
  proto::Frame frame = LiarsPut();
  frame.ticket = honest_->ticket();
  ExpectDropped(Tell(frame), absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(IsPublished(2));
}

TEST_P(LiarTest, RepliesWhereRequestsBelong) {
  for (int i = 0; i < 3; ++i) {
    proto::Frame frame;
    frame.seq = 1000 + static_cast<uint64_t>(i);
    frame.ticket = liar_->ticket();
    frame.body = proto::Pong{};
    const absl::Status status = AskOk(*connection_, frame).status();
    if (i < 2) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    } else {  // three strikes
      ExpectDropped(status, absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST_P(LiarTest, AFloodOfConnections) {
  std::vector<std::unique_ptr<transport::Connection>> flood;
  absl::Status refused;
  for (int i = 0; i < 300 && refused.ok(); ++i) {
    auto connection = liar_->DialOver(GetParam(), liar_->ticket(), 1 << 20);
    refused = connection.status();
    if (connection.ok()) flood.push_back(*std::move(connection));
  }
  ExpectDropped(refused, absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(HonestWork(3));
}

TEST_P(LiarTest, APayloadThatIsNotItsChecksum) {
  proto::Frame frame = LiarsPut();
  frame.payload_crc32c ^= 1;
  EXPECT_EQ(Tell(frame).code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(IsPublished(2));
  EXPECT_EQ(daemon_->Metric("cairn_puts_total{outcome=\"corrupt\"}"), 1);
}

TEST_P(LiarTest, AnImageThatIsNone) {
  proto::Frame frame = LiarsPut();
  std::get<proto::Put>(frame.body).form = proto::Form::kImage;
  EXPECT_EQ(Tell(frame).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(IsPublished(2));
}

TEST_P(LiarTest, WrongSizesAndRanges) {
  const auto spoil = [this](auto&& change) {
    proto::Frame frame = LiarsPut();
    change(std::get<proto::Put>(frame.body));
    const absl::Status status = Tell(frame);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  };
  spoil([](proto::Put& put) { put.slice.layer_count = 3; });
  spoil([](proto::Put& put) { put.slice.layer_first = 9; });
  spoil([](proto::Put& put) { put.slice.head_count = 1000; });
  spoil([](proto::Put& put) { put.group = 7; });
  spoil([](proto::Put& put) { put.tokens = 17; });
  spoil([](proto::Put& put) {
    put.parent = ToyKey(1);  // which is 16 tokens long
    put.first_position = 3;
  });
  EXPECT_FALSE(IsPublished(2));
  EXPECT_TRUE(Tell(LiarsPut()).ok()) << "mistakes are no hostility";
}

TEST_P(LiarTest, APayloadOfAnotherLength) {
  proto::Frame frame = LiarsPut();
  frame.payload_bytes -= 16;
  EXPECT_EQ(Tell(frame).code(), absl::StatusCode::kInvalidArgument);
  frame = LiarsPut();
  frame.payload_bytes = uint64_t{60} << 20;
  EXPECT_FALSE(Tell(frame).ok());
  EXPECT_FALSE(IsPublished(2));
}

TEST_P(LiarTest, ASpaceThatIsNotThere) {
  proto::Frame frame = LiarsPut();
  std::get<proto::Put>(frame.body).space_id = 77;
  EXPECT_EQ(Tell(frame).code(), absl::StatusCode::kNotFound);
}

TEST_P(LiarTest, ATargetTooSmall) {
  std::vector<std::byte> target(100);
  const auto reply =
      AskOk(*connection_, liar_->GetFrame(space_, ToyKey(1), WholeToy(), 1 << 20), {}, target);
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kInvalidArgument) << reply.status();
}

TEST_P(LiarTest, TheLargestNumbersThatAFrameCanSay) {
  proto::Frame put = LiarsPut();
  std::get<proto::Put>(put.body).first_position = proto::kPositionMax;
  EXPECT_TRUE(Tell(put).ok());
  std::vector<std::byte> target(payload_.size());
  proto::Frame get = liar_->GetFrame(space_, ToyKey(2), WholeToy(), proto::kPayloadBytesMax);
  const auto reply = AskOk(*connection_, get, {}, target);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(std::get<proto::GetReply>(reply->body).first_position, proto::kPositionMax);
  proto::Frame child = LiarsPut(3);
  std::get<proto::Put>(child.body).parent = ToyKey(2);
  std::get<proto::Put>(child.body).first_position = proto::kPositionMax;
  EXPECT_EQ(Tell(child).code(), absl::StatusCode::kInvalidArgument);
  std::get<proto::Get>(get.body).slice = {1023, 1, 1023, 1};
  EXPECT_EQ(AskOk(*connection_, get, {}, target).status().code(),
            absl::StatusCode::kInvalidArgument);
  std::get<proto::Get>(get.body).space_id = UINT64_MAX;
  EXPECT_EQ(AskOk(*connection_, get, {}, target).status().code(), absl::StatusCode::kNotFound);
  get.deadline_ms = proto::kDeadlineMsMax;
  std::get<proto::Get>(get.body).group = proto::kGroupsMax - 1;
  EXPECT_FALSE(AskOk(*connection_, get, {}, target).ok());
}

// Whole frames with a right checksum of their own whose fields say anything: what the parser lets
// pass, the rest of the daemon stands, and all of it can be answered.
TEST_P(LiarTest, FieldsThatLieUnderARightChecksum) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 120; ++i) {
    const proto::Frame frame =
        i % 2 == 0 ? LiarsPut() : liar_->GetFrame(space_, ToyKey(1), WholeToy(), payload_.size());
    proto::FrameBytes bytes = proto::Serialize(frame);
    for (uint64_t pokes = 1 + random() % 3; pokes > 0; --pokes) {
      // But the seq, by which an answer finds its request, and rarely the ticket.
      const size_t at = i % 10 == 0 ? 16 + random() % 16 : 32 + random() % (bytes.size - 32);
      const uint8_t extremes[] = {0, 1, 0x7f, 0x80, 0xff, static_cast<uint8_t>(random())};
      bytes.data[at] = std::byte{extremes[random() % 6]};
    }
    std::memset(bytes.data.data() + proto::kFrameCrcOffset, 0, 4);
    const uint32_t crc = codecs::Crc32c(bytes.bytes());
    std::memcpy(bytes.data.data() + proto::kFrameCrcOffset, &crc, 4);
    const absl::Status status = TellBytes(bytes);
    EXPECT_NE(status.code(), absl::StatusCode::kInternal) << status;
  }
  EXPECT_TRUE(HonestWork(3));
}

TEST_P(LiarTest, FramesCutShortAndNoise) {
  std::mt19937_64 random(12);
  for (const uint16_t size : {64, 100, 159}) {  // a client can say no less than a head
    proto::FrameBytes bytes = proto::Serialize(LiarsPut());
    bytes.size = size;
    EXPECT_FALSE(TellBytes(bytes).ok()) << size;
    for (size_t at = 16; at < size; ++at) bytes.data[at] = static_cast<std::byte>(random());
    EXPECT_FALSE(TellBytes(bytes).ok()) << size;
  }
  EXPECT_FALSE(IsPublished(2));
}

}  // namespace
}  // namespace cairn
