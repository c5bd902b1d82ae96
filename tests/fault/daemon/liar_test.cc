// SPDX-License-Identifier: Apache-2.0
// Clients that lie: each lie gets a typed error or a dropped connection, the daemon lives, an
// honest client goes on, and the memory comes back.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"
#include "transport/local/envelope.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

class LiarTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    honest_ = Open();
    liar_ = Open();
    ASSERT_TRUE(honest_ != nullptr && liar_ != nullptr);
    auto space = honest_->OpenSpace(ToySpec("test"));
    ASSERT_TRUE(space.ok());
    space_ = *space;
    honest_connection_ = Dial(*honest_);
    connection_ = Dial(*liar_);
    payload_ = ToySource(1, WholeToy());
    ASSERT_TRUE(HonestWork(1));
  }

  // After every lie: the honest client works, nothing is held, the daemon runs.
  void TearDown() override {
    if (daemon_ == nullptr) return;
    connection_.reset();
    liar_.reset();
    EXPECT_TRUE(HonestWork(1000));
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_sessions", 1, absl::Seconds(10)));
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_staging_used_bytes", 0, absl::Seconds(10)));
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_tier_pinned_bytes", 0, absl::Seconds(10)));
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_data_requests_in_flight", 0, absl::Seconds(10)));
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_data_peers", 1, absl::Seconds(10)));
    EXPECT_TRUE(daemon_->process().is_running()) << daemon_->ReadLog();
  }

  std::unique_ptr<RawClient> Open() {
    auto client = RawClient::Open(daemon_->endpoint("control"));
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  static std::unique_ptr<transport::Connection> Dial(RawClient& client) {
    auto connection = client.Dial();
    EXPECT_TRUE(connection.ok()) << connection.status();
    return connection.ok() ? *std::move(connection) : nullptr;
  }
  bool HonestWork(uint64_t block) {
    const auto content = ToySource(block, WholeToy());
    const auto put = AskOk(*honest_connection_,
                           honest_->PutFrame(space_, ToyKey(block), WholeToy(), content), content);
    EXPECT_TRUE(put.ok()) << put.status();
    std::vector<std::byte> target(content.size());
    const auto get =
        AskOk(*honest_connection_,
              honest_->GetFrame(space_, ToyKey(block), WholeToy(), target.size()), {}, target);
    EXPECT_TRUE(get.ok()) << get.status();
    return put.ok() && get.ok() && target == content;
  }
  proto::Frame LiarsPut(uint64_t block = 2) {
    return liar_->PutFrame(space_, ToyKey(block), WholeToy(), payload_);
  }
  absl::Status Tell(const proto::Frame& frame) {
    return AskOk(*connection_, frame, payload_).status();
  }
  bool IsPublished(uint64_t block) {
    const std::vector<proto::BlockKey> keys = {ToyKey(block)};
    return honest_->Match(honest_->MatchOf(space_, keys))->block_count() == 1;
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> honest_, liar_;
  std::unique_ptr<transport::Connection> honest_connection_, connection_;
  uint64_t space_ = 0;
  std::vector<std::byte> payload_;
};

TEST_F(LiarTest, AWrongTicketAtHello) {
  proto::Ticket ticket = liar_->ticket();
  ticket[3] ^= std::byte{1};
  const auto connection = liar_->Dial(ticket, 1 << 20);
  EXPECT_EQ(connection.status().code(), absl::StatusCode::kPermissionDenied) << connection.status();
}

TEST_F(LiarTest, AWrongTicketLater) {
  proto::Frame frame = LiarsPut();
  frame.ticket[0] ^= std::byte{1};
  EXPECT_EQ(Tell(frame).code(), absl::StatusCode::kPermissionDenied);
  const absl::Status next = Tell(LiarsPut());
  EXPECT_EQ(next.code(), absl::StatusCode::kUnavailable) << "the connection is dropped: " << next;
  EXPECT_FALSE(IsPublished(2));
}

TEST_F(LiarTest, AnothersTicket) {
  proto::Frame frame = LiarsPut();
  frame.ticket = honest_->ticket();
  EXPECT_EQ(Tell(frame).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(LiarTest, APayloadThatIsNotItsChecksum) {
  proto::Frame frame = LiarsPut();
  frame.payload_crc32c ^= 1;
  EXPECT_EQ(Tell(frame).code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(IsPublished(2));
  EXPECT_EQ(daemon_->Metric("cairn_puts_total{outcome=\"corrupt\"}"), 1);
}

TEST_F(LiarTest, AnImageThatIsNone) {
  proto::Frame frame = LiarsPut();
  std::get<proto::Put>(frame.body).form = proto::Form::kImage;
  EXPECT_EQ(Tell(frame).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(IsPublished(2));
}

TEST_F(LiarTest, WrongSizesAndRanges) {
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

TEST_F(LiarTest, APayloadOfAnotherLength) {
  proto::Frame frame = LiarsPut();
  frame.payload_bytes -= 16;
  EXPECT_EQ(Tell(frame).code(), absl::StatusCode::kInvalidArgument);
  frame = LiarsPut();
  frame.payload_bytes = uint64_t{60} << 20;
  EXPECT_FALSE(Tell(frame).ok());
  EXPECT_FALSE(IsPublished(2));
}

TEST_F(LiarTest, ASpaceThatIsNotThere) {
  proto::Frame frame = LiarsPut();
  std::get<proto::Put>(frame.body).space_id = 77;
  EXPECT_EQ(Tell(frame).code(), absl::StatusCode::kNotFound);
}

TEST_F(LiarTest, ATargetTooSmall) {
  std::vector<std::byte> target(100);
  const auto reply =
      AskOk(*connection_, liar_->GetFrame(space_, ToyKey(1), WholeToy(), 1 << 20), {}, target);
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kInvalidArgument) << reply.status();
}

TEST_F(LiarTest, RepliesWhereRequestsBelong) {
  for (int i = 0; i < 3; ++i) {
    proto::Frame frame;
    frame.seq = 1000 + static_cast<uint64_t>(i);
    frame.ticket = liar_->ticket();
    frame.body = proto::Pong{};
    const auto reply = AskOk(*connection_, frame);
    EXPECT_FALSE(reply.ok());
  }
  EXPECT_FALSE(Tell(LiarsPut()).ok()) << "three strikes and the connection is dropped";
}

TEST_F(LiarTest, AFloodOfSessions) {
  std::vector<std::unique_ptr<RawClient>> flood;
  absl::Status refused;
  for (int i = 0; i < 600 && refused.ok(); ++i) {
    auto client = RawClient::Open(daemon_->endpoint("control"));
    refused = client.status();
    if (client.ok()) flood.push_back(*std::move(client));
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_GE(flood.size(), 100u);
  EXPECT_TRUE(HonestWork(3));
}

TEST_F(LiarTest, AFloodOfConnections) {
  std::vector<std::unique_ptr<transport::Connection>> flood;
  absl::Status refused;
  for (int i = 0; i < 300 && refused.ok(); ++i) {
    auto connection = liar_->Dial(1 << 20);
    refused = connection.status();
    if (connection.ok()) flood.push_back(*std::move(connection));
  }
  EXPECT_FALSE(refused.ok());
  EXPECT_TRUE(HonestWork(3));
}

// --- bytes that are no protocol at all
// -------------------------------------------------------------

Fd ConnectSocket(const std::string& path) {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const timeval limit{3, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

// Sends `bytes`, with a file descriptor where that is valid.
void SendWithFd(int socket, const std::string& bytes, int fd) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  (void)::sendmsg(socket, &message, MSG_NOSIGNAL);
}

std::string RandomBytes(std::mt19937_64& random, size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// What the daemon answers on a raw socket: the status of its reply, or Unavailable where it closes.
absl::Status ReadAnswer(int socket) {
  std::byte bytes[1024];
  const ssize_t count = ::recv(socket, bytes, sizeof bytes, 0);
  if (count <= 0) return absl::UnavailableError(count == 0 ? "closed" : std::strerror(errno));
  const auto message = transport::ParseMessage(std::span(bytes, static_cast<size_t>(count)),
                                               transport::Direction::kReply);
  if (!message.ok()) return message.status();
  const auto frame = proto::ParseFrame(message->frame.bytes());
  return frame.ok() ? proto::StatusOf(*frame) : frame.status();
}

std::string Text(const transport::MessageBytes& message) {
  return {reinterpret_cast<const char*>(message.data.data()), message.size};
}

// A memfd of `bytes`, with all the seals there should be or none.
Fd MakeMemory(off_t bytes, bool is_sealed) {
  Fd fd(::memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), bytes), 0);
  if (is_sealed) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  }
  return fd;
}

TEST_F(LiarTest, MemoryThatIsNotWhatItSeems) {
  constexpr off_t kBytes = 1 << 20;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd pipe(ends[0]), pipe_end(ends[1]);
  const Fd unsealed = MakeMemory(kBytes, false), truncated = MakeMemory(4096, true),
           vast = MakeMemory(off_t{2} << 30, true), good = MakeMemory(kBytes, true);
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
}

TEST_F(LiarTest, PlacesOutsideTheMemory) {
  const Fd memory = MakeMemory(1 << 20, true);
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

TEST_F(LiarTest, FramesCutShort) {
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

TEST_F(LiarTest, RandomBytesAtTheSocket) {
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

TEST_F(LiarTest, RandomBytesAtTheControlAndHttpPorts) {
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

TEST_F(LiarTest, SilentConnectionsDoNotKeepOthersOut) {
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(ConnectTcp(daemon_->port("control")));
    silent.push_back(ConnectTcp(daemon_->port("http")));
  }
  EXPECT_TRUE(HonestWork(3));
  EXPECT_NE(Open(), nullptr);
  EXPECT_THAT(daemon_->HttpGet("/healthz"), HasSubstr("200 OK"));
}

}  // namespace
}  // namespace cairn
