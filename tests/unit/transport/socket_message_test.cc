// SPDX-License-Identifier: Apache-2.0
#include "transport/local/socket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace cairn::transport {
namespace {

proto::FrameBytes PingBytes() {
  proto::Frame frame;
  frame.seq = 0x1122334455667788;
  frame.body = proto::Ping{};
  return proto::Serialize(frame);
}

TEST(Envelope, IsReadAsWritten) {
  const Envelope envelope{Direction::kRequest, 1, 2, 3, UINT64_MAX};
  const MessageBytes message = Serialize(envelope, PingBytes());
  EXPECT_EQ(message.size, kEnvelopeBytes + proto::kFrameHeadBytes);
  const auto read = ParseMessage(message.bytes(), Direction::kRequest);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->envelope.payload_place, 1u);
  EXPECT_EQ(read->envelope.payload_bytes, 2u);
  EXPECT_EQ(read->envelope.reply_place, 3u);
  EXPECT_EQ(read->envelope.reply_capacity_bytes, UINT64_MAX);
  EXPECT_EQ(read->seq, 0x1122334455667788u);
  EXPECT_TRUE(std::ranges::equal(read->frame.bytes(), PingBytes().bytes()));
}

TEST(Envelope, AnotherDirectionIsRefused) {
  const MessageBytes message = Serialize({.direction = Direction::kReply}, PingBytes());
  EXPECT_TRUE(ParseMessage(message.bytes(), Direction::kReply).ok());
  EXPECT_EQ(ParseMessage(message.bytes(), Direction::kRequest).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Envelope, LoansAreForWhoHasMappedAlone) {
  for (const auto& [lending, expected] :
       {std::pair(Direction::kLendableRequest, Direction::kRequest),
        std::pair(Direction::kLoan, Direction::kReply)}) {
    const MessageBytes message = Serialize({.direction = lending}, PingBytes());
    EXPECT_FALSE(ParseMessage(message.bytes(), expected).ok());
    const auto read = ParseMessage(message.bytes(), expected, /*is_mapped=*/true);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->envelope.direction, lending);
    const MessageBytes plain = Serialize({.direction = expected}, PingBytes());
    EXPECT_EQ(ParseMessage(plain.bytes(), expected, true)->envelope.direction, expected);
    const Direction other =
        expected == Direction::kRequest ? Direction::kReply : Direction::kRequest;
    EXPECT_FALSE(ParseMessage(message.bytes(), other, true).ok());
  }
}

TEST(Envelope, EveryLengthButItsOwnIsRefused) {
  const MessageBytes message = Serialize({}, PingBytes());
  for (size_t bytes = 0; bytes < 2 * kMessageBytesMax; ++bytes) {
    std::vector<std::byte> cut(
        bytes);  // of exactly that size, so that a sanitizer sees a read past it
    std::copy_n(message.data.begin(), std::min(bytes, message.size), cut.begin());
    EXPECT_EQ(ParseMessage(cut, Direction::kRequest).ok(), bytes == message.size) << bytes;
  }
}

TEST(Envelope, EveryChangedByteOfItsHeadIsRefused) {
  const MessageBytes message = Serialize({}, PingBytes());
  for (size_t at = 0; at < 8; ++at) {
    for (int value = 1; value < 256; ++value) {
      MessageBytes changed = message;
      changed.data[at] ^= static_cast<std::byte>(value);
      EXPECT_FALSE(ParseMessage(changed.bytes(), Direction::kRequest).ok()) << at;
    }
  }
}

}  // namespace
}  // namespace cairn::transport
