// SPDX-License-Identifier: Apache-2.0
#include "proto/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "codecs/checksum/checksum.h"
#include "proto/frame_layout.h"

namespace cairn::proto {
namespace {

using testing::HasSubstr;

BlockKey SomeKey() {
  BlockKey key{};
  key[0] = std::byte{1};
  return key;
}

Get SomeGet() {
  Get get;
  get.key = SomeKey();
  get.slice = {0, 1, 0, 1};
  return get;
}

Put SomePut() {
  Put put;
  put.key = SomeKey();
  put.slice = {0, 1, 0, 1};
  put.tokens = 128;
  return put;
}

// One valid frame of every kind.
std::vector<Frame> AllKinds() {
  std::vector<Frame> frames;
  const auto add = [&frames](Body body) {
    Frame frame;
    frame.seq = 42;
    frame.ticket[3] = std::byte{9};
    frame.body = std::move(body);
    if (frame.kind() == FrameKind::kError) {
      frame.status = absl::StatusCode::kNotFound;
    }
    frames.push_back(std::move(frame));
  };
  add(Hello{1, 16, 1 << 20});
  add(HelloReply{1, 16, kPayloadBytesMax});
  add(SomeGet());
  add(GetReply{});
  add(SomePut());
  add(PutReply{});
  add(Ping{});
  add(Pong{});
  add(Goodbye{});
  add(ErrorReply{"slice.head_count is 9"});
  return frames;
}

EngineHash SomeHash(size_t count) {
  std::vector<std::byte> bytes(count, std::byte{7});
  return EngineHash::From(bytes, "hash").value();
}

// Those, and puts with names.
std::vector<Frame> AllFrames() {
  std::vector<Frame> frames = AllKinds();
  Put put = SomePut();
  put.has_tokens = true;
  put.engine_hash = SomeHash(32);
  frames.push_back({.seq = 42, .body = put});
  put.engine_hash = SomeHash(8);
  put.engine_parent = SomeHash(17);
  frames.push_back({.seq = 42, .body = put});
  return frames;
}

// Makes the CRC right again after a change, so that what lies behind it is reached.
void Reseal(FrameBytes& bytes) {
  const uint32_t zero = 0;
  std::memcpy(bytes.data.data() + kFrameCrcOffset, &zero, sizeof(zero));
  const uint32_t crc = codecs::Crc32c(bytes.bytes());
  std::memcpy(bytes.data.data() + kFrameCrcOffset, &crc, sizeof(crc));
}

template <typename T>
void Poke(FrameBytes& bytes, size_t at, T value) {
  std::memcpy(bytes.data.data() + at, &value, sizeof(value));
  Reseal(bytes);
}

std::string ErrorOf(const FrameBytes& bytes) {
  const auto frame = ParseFrame(bytes.bytes());
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(frame.status().message());
}

TEST(Frame, EveryKindIsReadAsWritten) {
  ASSERT_EQ(AllKinds().size(), std::variant_size_v<Body>);
  int kind = 0;
  for (const Frame& frame : AllKinds()) {
    EXPECT_EQ(static_cast<int>(frame.kind()), ++kind);
    const FrameBytes bytes = Serialize(frame);
    EXPECT_LE(bytes.size, kFrameBytesMax);
    const auto read = ParseFrame(bytes.bytes());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->seq, frame.seq);
    EXPECT_TRUE(TicketsEqual(read->ticket, frame.ticket));
    EXPECT_EQ(read->kind(), frame.kind());
    const FrameBytes again = Serialize(*read);
    EXPECT_TRUE(std::ranges::equal(again.bytes(), bytes.bytes()));
  }
}

TEST(Frame, NamesAreReadAsWritten) {
  for (const size_t parent_bytes : {0, 8, 32}) {
    Put put = SomePut();
    put.has_tokens = true;
    put.statistics.Add(Statistic::kTokenScores);
    put.engine_hash = SomeHash(20);
    put.engine_parent = SomeHash(parent_bytes);
    const auto read = ParseFrame(Serialize({.seq = 1, .body = put}).bytes());
    ASSERT_TRUE(read.ok()) << read.status();
    const Put& found = std::get<Put>(read->body);
    EXPECT_EQ(found.engine_hash, put.engine_hash);
    EXPECT_EQ(found.engine_parent, put.engine_parent);
    EXPECT_TRUE(found.has_tokens && found.statistics.Has(Statistic::kTokenScores));
  }
  const FrameBytes without = Serialize({.seq = 1, .body = SomePut()});
  EXPECT_EQ(without.size, kFrameHeadBytes + 96) << "as daemons before names read it";
}

TEST(Frame, WrongNamesAreRefusedByName) {
  Put put = SomePut();
  put.engine_hash = SomeHash(9);
  const FrameBytes named = Serialize({.seq = 1, .body = put});
  constexpr size_t kNames = kFrameHeadBytes + 96;
  const auto poked = [&](size_t at, uint8_t value) {
    FrameBytes bytes = named;
    Poke(bytes, kNames + at, value);
    return ErrorOf(bytes);
  };
  EXPECT_EQ(poked(0, 7), "frame: put.engine_hash bytes is 7, expected 8 to 32");
  EXPECT_EQ(poked(0, 33), "frame: put.engine_hash bytes is 33, expected 8 to 32");
  EXPECT_EQ(poked(1, 3), "put.engine_parent has 3 bytes, expected 8 to 32, or none");
  EXPECT_EQ(poked(2, 1), "frame: put.reserved is 1, expected 0");
  EXPECT_EQ(poked(8 + 9, 1), "frame: put.engine_hash is 1, expected 0");
  EXPECT_EQ(poked(40, 1), "frame: put.engine_parent is 1, expected 0");
}

TEST(Frame, EveryChangedByteIsRefused) {
  for (const Frame& frame : AllFrames()) {
    const FrameBytes bytes = Serialize(frame);
    for (size_t at = 0; at < bytes.size; ++at) {
      for (int value = 1; value < 256; ++value) {
        FrameBytes changed = bytes;
        changed.data[at] ^= static_cast<std::byte>(value);
        ASSERT_FALSE(ParseFrame(changed.bytes()).ok()) << at;
      }
    }
  }
}

// With a right CRC a changed byte may make another valid frame, but then one that writes itself.
TEST(Frame, EveryChangedByteUnderARightCrcIsRefusedOrMeant) {
  for (const Frame& frame : AllFrames()) {
    const FrameBytes bytes = Serialize(frame);
    for (size_t at = 0; at < bytes.size; ++at) {
      for (int value = 1; value < 256; ++value) {
        FrameBytes changed = bytes;
        changed.data[at] ^= static_cast<std::byte>(value);
        Reseal(changed);
        const auto read = ParseFrame(changed.bytes());
        if (read.ok()) {
          const FrameBytes again = Serialize(*read);
          ASSERT_TRUE(std::ranges::equal(again.bytes(), changed.bytes())) << at;
        } else {
          ASSERT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
        }
      }
    }
  }
}

TEST(Frame, EveryOtherLengthIsRefused) {
  for (const Frame& frame : AllFrames()) {
    const FrameBytes bytes = Serialize(frame);
    for (size_t size = 0; size <= kFrameBytesMax + 8; ++size) {
      std::vector<std::byte> cut(
          size);  // of exactly that size, so that a sanitizer sees a read past it
      std::copy_n(bytes.data.begin(), std::min<size_t>(size, bytes.size), cut.begin());
      ASSERT_EQ(ParseFrame(cut).ok(), size == bytes.size) << size;
    }
  }
  EXPECT_EQ(SeqOf(std::vector<std::byte>(kFrameHeadBytes - 1)), std::nullopt);
  EXPECT_EQ(SeqOf({}), std::nullopt);
}

TEST(Frame, ErrorsNameTheFieldAndTheLimit) {
  const FrameBytes get = Serialize(AllKinds()[2]);
  const FrameBytes put = Serialize(AllKinds()[4]);
  const auto poke = [](FrameBytes bytes, size_t at, auto value) {
    Poke(bytes, at, value);
    return ErrorOf(bytes);
  };
  EXPECT_THAT(poke(get, 4, uint8_t{2}), HasSubstr("version is 2, expected 1"));
  EXPECT_THAT(poke(get, 5, uint8_t{0}), HasSubstr("kind is 0, expected 1 to 10"));
  EXPECT_THAT(poke(get, 5, uint8_t{11}), HasSubstr("kind is 11"));
  EXPECT_THAT(poke(get, 5, uint8_t{5}), HasSubstr("body_bytes is 80, expected 96"));
  EXPECT_THAT(poke(get, 6, uint16_t{1}), HasSubstr("flags"));
  EXPECT_THAT(poke(Serialize(AllKinds()[3]), 56, uint32_t{1}),
              HasSubstr("trace of a reply is 4294967296, expected 0"));
  EXPECT_THAT(poke(get, 32, uint64_t{1}), HasSubstr("payload_bytes is 1, expected 0"));
  EXPECT_THAT(poke(put, 32, kPayloadBytesMax + 1), HasSubstr("payload_bytes"));
  EXPECT_THAT(poke(put, 40, uint32_t{1}), HasSubstr("payload_crc32c"));
  EXPECT_THAT(poke(get, 44, kDeadlineMsMax + 1),
              HasSubstr("deadline_ms is 60001, expected 0 to 60000"));
  EXPECT_THAT(poke(get, 48, uint16_t{1}), HasSubstr("status"));
  EXPECT_THAT(poke(get, 64 + 56, uint16_t{16}), HasSubstr("group is 16, expected 0 to 15"));
  EXPECT_THAT(poke(get, 64 + 60, uint16_t{0}), HasSubstr("slice.layer_count"));
  EXPECT_THAT(poke(get, 64 + 58, uint16_t{0xFFFF}), HasSubstr("slice.layer_first"));
  EXPECT_THAT(poke(get, 64 + 66, uint8_t{2}), HasSubstr("get.form is 2, expected 0 to 1"));
  EXPECT_THAT(poke(get, 64 + 72, kPayloadBytesMax + 1), HasSubstr("get.target_bytes"));
  EXPECT_THAT(poke(get, 64 + 8, uint8_t{0}), HasSubstr("get.key"));
  EXPECT_THAT(poke(put, 64 + 90, uint16_t{15}), HasSubstr("put.tokens is 15, expected 16 to 1024"));
  EXPECT_THAT(poke(put, 64 + 93, uint8_t{2}), HasSubstr("put.is_derived"));
  EXPECT_THAT(poke(put, 64 + 94, uint8_t{16}), HasSubstr("put.aux"));
  EXPECT_THAT(poke(put, 64 + 72, kPositionMax + 1), HasSubstr("put.first_position"));
  const FrameBytes hello = Serialize(AllKinds()[0]);
  EXPECT_THAT(poke(hello, 64 + 4, uint32_t{0}), HasSubstr("hello.window is 0, expected 1 to 256"));
  const FrameBytes error = Serialize(AllKinds()[9]);
  EXPECT_THAT(poke(error, 48, uint16_t{0}), HasSubstr("status is 0, expected 1 to 16"));
  EXPECT_THAT(poke(error, 48, uint16_t{17}), HasSubstr("status is 17"));
}

TEST(Frame, ErrorRepliesCarryAStatusAndACutText) {
  Ticket ticket{};
  ticket[0] = std::byte{1};
  const Frame frame = ErrorFrame(7, ticket, absl::NotFoundError("no such space"));
  const auto read = ParseFrame(Serialize(frame).bytes());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->seq, 7u);
  EXPECT_EQ(StatusOf(*read), absl::NotFoundError("no such space"));

  // Two-byte characters around the limit: none is cut in half, whichever entrance the text takes.
  for (const std::string& pad : {std::string(), std::string("a")}) {
    std::string text = pad;
    for (size_t i = 0; i < kErrorTextBytesMax; ++i) {
      text += "é";
    }
    const Frame cut = ErrorFrame(7, ticket, absl::InternalError(text));
    const size_t expected = kErrorTextBytesMax - pad.size();
    EXPECT_EQ(std::get<ErrorReply>(cut.body).text.size(), expected);
    Frame long_text = cut;
    long_text.body = ErrorReply{text};
    const auto again = ParseFrame(Serialize(long_text).bytes());
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(std::get<ErrorReply>(again->body).text, std::get<ErrorReply>(cut.body).text);
  }
  EXPECT_EQ(StatusOf(AllKinds()[3]), absl::OkStatus());
}

TEST(Frame, TicketsAreComparedWhole) {
  Ticket a{};
  EXPECT_TRUE(TicketsEqual(a, a));
  for (size_t i = 0; i < a.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Ticket b = a;
      b[i] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(TicketsEqual(a, b));
    }
  }
}

TEST(FrameDeath, WritingWhatCannotBeReadIsABug) {
  Frame frame = AllKinds()[0];
  frame.payload_bytes = 1;
  EXPECT_DEATH(Serialize(frame), "payload_bytes");
}

}  // namespace
}  // namespace cairn::proto
