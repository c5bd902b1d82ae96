// SPDX-License-Identifier: Apache-2.0
// Clients that lie below the frames: bytes that are no protocol at all, at every port but UCX's
// (tests/fault/ucx), and memory that is not what it seems.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

#include "tests/fault/daemon/liar_fixture.h"
#include "tests/fault/daemon/raw_socket.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

class LiarSocketTest : public LiarFixture {
 protected:
  LiarSocketTest() : LiarFixture(Wire::kLocal) {}
};

TEST_F(LiarSocketTest, MemoryThatIsNotWhatItSeems) {
  constexpr off_t kBytes = 1 << 20;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd pipe(ends[0]), pipe_end(ends[1]);
  const Fd unsealed = MakeMemory(kBytes, false), truncated = MakeMemory(4096, true),
           vast = MakeMemory(off_t{2} << 30, true), sparse = MakeMemory(off_t{1} << 30, true),
           good = Written(MakeMemory(kBytes, true), kBytes),
           closed = Written(MakeMemory(kBytes, true), kBytes);
  ASSERT_EQ(::fcntl(closed.get(), F_ADD_SEALS, F_SEAL_SEAL), 0);
  const auto hello = [this](uint64_t region_bytes) {
    proto::Frame frame;
    frame.seq = 1;
    frame.ticket = liar_->ticket();
    frame.body = proto::Hello{.window = 8, .region_bytes = region_bytes};
    transport::Envelope envelope;
    envelope.direction = transport::Direction::kRequest;
    return Text(transport::Serialize(envelope, proto::Serialize(frame)));
  };
  const auto greet = [&](int fd, uint64_t region_bytes) {
    const Fd socket = ConnectSocket(daemon_->endpoint("socket"));
    SendWithFd(socket.get(), hello(region_bytes), fd);
    return ReadAnswer(socket.get());
  };
  EXPECT_TRUE(greet(good.get(), kBytes).ok());
  EXPECT_FALSE(greet(-1, kBytes).ok());
  EXPECT_FALSE(greet(unsealed.get(), kBytes).ok());
  EXPECT_FALSE(greet(truncated.get(), kBytes).ok());
  EXPECT_FALSE(greet(pipe.get(), kBytes).ok());
  EXPECT_FALSE(greet(vast.get(), uint64_t{2} << 30).ok()) << "over --region-bytes";
  EXPECT_FALSE(greet(sparse.get(), uint64_t{1} << 30).ok()) << "the daemon would pay for it";
  EXPECT_EQ(AllocatedBytes(sparse), 0);
  EXPECT_FALSE(greet(closed.get(), kBytes).ok()) << "holes could be punched later";
  EXPECT_NE(::fallocate(good.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes), 0);
}

TEST_F(LiarSocketTest, PlacesOutsideTheMemory) {
  const Fd memory = Written(MakeMemory(1 << 20, true), 1 << 20);
  const Fd socket = ConnectSocket(daemon_->endpoint("socket"));
  proto::Frame frame;
  frame.seq = 1;
  frame.ticket = liar_->ticket();
  frame.body = proto::Hello{.window = 8, .region_bytes = 1 << 20};
  transport::Envelope envelope;
  envelope.direction = transport::Direction::kRequest;
  SendWithFd(socket.get(), Text(transport::Serialize(envelope, proto::Serialize(frame))),
             memory.get());
  ASSERT_TRUE(ReadAnswer(socket.get()).ok());
  envelope.payload_bytes = payload_.size();
  envelope.payload_place = (1 << 20) - 4096;
  SendWithFd(socket.get(), Text(transport::Serialize(envelope, proto::Serialize(LiarsPut()))), -1);
  EXPECT_FALSE(ReadAnswer(socket.get()).ok());
  EXPECT_FALSE(IsPublished(2));
}

TEST_F(LiarSocketTest, FramesCutShort) {
  const proto::FrameBytes whole = proto::Serialize(LiarsPut());
  for (const size_t bytes :
       {size_t{1}, size_t{40}, size_t{41}, size_t{103}, size_t{104}, size_t{120}}) {
    const Fd socket = ConnectSocket(daemon_->endpoint("socket"));
    transport::Envelope envelope;
    envelope.direction = transport::Direction::kRequest;
    SendWithFd(socket.get(), Text(transport::Serialize(envelope, whole)).substr(0, bytes), -1);
    EXPECT_FALSE(ReadAnswer(socket.get()).ok()) << bytes;
  }
}

TEST_F(LiarSocketTest, RandomBytesAtTheSocket) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const Fd fd = ConnectSocket(daemon_->endpoint("socket"));
    const int packets = 1 + static_cast<int>(random() % 4);
    for (int j = 0; j < packets; ++j) {
      SendWithFd(fd.get(), RandomBytes(random, 1 + random() % 600), -1);
    }
  }
  EXPECT_TRUE(HonestWork(3));
}

TEST_F(LiarSocketTest, RandomBytesAtTheControlAndHttpPorts) {
  std::mt19937_64 random(8);
  for (const char* name : {"control", "http"}) {
    for (int i = 0; i < 100; ++i) {
      const Fd fd = ConnectTcp(daemon_->port(name));
      std::string bytes = RandomBytes(random, 1 + random() % 5000);
      if (i % 3 == 0) bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes;
      if (i % 3 == 1) bytes = "GET /metrics HTTP/1.1\r\n" + bytes;
      (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
  }
  EXPECT_TRUE(HonestWork(3));
  EXPECT_THAT(daemon_->HttpGet("/healthz"), HasSubstr("200 OK"));
}

TEST_F(LiarSocketTest, SilentConnectionsDoNotKeepOthersOut) {
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(ConnectTcp(daemon_->port("control")));
    silent.push_back(ConnectTcp(daemon_->port("http")));
  }
  EXPECT_TRUE(HonestWork(3));
  EXPECT_NE(Open(), nullptr);
  EXPECT_THAT(daemon_->HttpGet("/healthz"), HasSubstr("200 OK"));
}

TEST_F(LiarSocketTest, AFloodOfSessions) {
  std::vector<std::unique_ptr<RawClient>> flood;
  absl::Status refused;
  for (int i = 0; i < 600 && refused.ok(); ++i) {
    auto client = RawClient::Open(daemon_->endpoint("control"));
    refused = client.status();
    if (client.ok()) flood.push_back(*std::move(client));
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("sessions: the tenant holds 512"));
  EXPECT_GE(flood.size(), 100u);
  EXPECT_TRUE(HonestWork(3));
}

}  // namespace
}  // namespace cairn
