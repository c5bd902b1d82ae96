// SPDX-License-Identifier: Apache-2.0
// Clients that lie to the local transport: typed errors or a dropped connection; the daemon lives,
// others' work goes on, memory and descriptors return. Here: what they send. What they do with what
// they have been given is in local_greedy_test.cc.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "tests/conformance/transport/local_hostile.h"
#include "tests/support/lingering_socket.h"
#include "tests/support/random.h"

namespace cairn::transport {
namespace {

TEST_F(LocalHostileTest, RandomBytes) {
  StartServer();
  std::mt19937_64 random = SeededRandom();
  for (int i = 0; i < 500; ++i) {
    const Fd socket = Raw();
    for (int packet = 0; packet < 4; ++packet) {
      std::vector<std::byte> bytes(1 + random() % 1000);
      for (std::byte& byte : bytes) {
        byte = static_cast<std::byte>(random());
      }
      SendPacket(socket.get(), bytes).IgnoreError();  // may be dropped already
    }
    EXPECT_EQ(Answer(socket).code(), absl::StatusCode::kUnavailable);
  }
  ExpectUnharmed();
  EXPECT_EQ(daemon_.hellos.load(), 1);
}

TEST_F(LocalHostileTest, MessagesCutShortOrTooLong) {
  StartServer();
  const auto region = *ClientRegion::Make(kRegionBytes);
  const MessageBytes whole = HelloMessage();
  for (size_t bytes = 1; bytes < whole.size; ++bytes) {
    const Fd socket = Raw();
    ASSERT_TRUE(SendPacket(socket.get(), whole.bytes().first(bytes), region->memfd()).ok());
    EXPECT_EQ(Answer(socket).code(), absl::StatusCode::kUnavailable) << bytes;
  }
  for (const size_t bytes :
       {whole.size + 1, kMessageBytesMax, kMessageBytesMax + 1, size_t{60'000}}) {
    std::vector<std::byte> longer(bytes);
    std::copy_n(whole.data.begin(), whole.size, longer.begin());
    const Fd socket = Raw();
    ASSERT_TRUE(SendPacket(socket.get(), longer, region->memfd()).ok());
    EXPECT_EQ(Answer(socket).code(), absl::StatusCode::kUnavailable) << bytes;
  }
  EXPECT_EQ(daemon_.hellos.load(), 1);
  fds_ += 1;  // `region` is still open here
  ExpectUnharmed();
}

// `count` pings in one packet.
std::vector<std::byte> Pings(size_t count) {
  std::vector<std::byte> packet;
  for (size_t i = 0; i < count; ++i) {
    proto::Frame ping;
    ping.seq = 10 + i;
    ping.body = proto::Ping{};
    const MessageBytes message = Serialize({}, proto::Serialize(ping));
    packet.insert(packet.end(), message.bytes().begin(), message.bytes().end());
  }
  return packet;
}

TEST_F(LocalHostileTest, BatchesThatAreNone) {
  StartServer();
  const size_t one = Pings(1).size();
  {
    const auto region = *ClientRegion::Make(kRegionBytes);
    const Fd socket = RawOpen(*region);
    ASSERT_TRUE(SendPacket(socket.get(), Pings(proto::kBatchMax)).ok());
    size_t bytes = 0;
    EXPECT_TRUE(WaitFor([&] {
      const Packet packet = ReceivePacket(socket.get());
      bytes += packet.outcome == Packet::Outcome::kPacket ? packet.size : 0;
      return bytes == proto::kBatchMax * one;
    })) << bytes;
  }
  std::vector<std::vector<std::byte>> packets = {Pings(proto::kBatchMax + 1), Pings(3), Pings(3)};
  packets[1][one] ^= std::byte{1};          // the second's magic
  packets[2][2 * one + 6] ^= std::byte{1};  // the third's length
  for (size_t cut : {size_t{1}, one / 2, one - 1}) {
    packets.push_back(Pings(2));
    packets.back().resize(one + cut);
  }
  for (const std::vector<std::byte>& packet : packets) {
    const auto region = *ClientRegion::Make(kRegionBytes);
    const Fd socket = RawOpen(*region);
    ASSERT_TRUE(SendPacket(socket.get(), packet).ok());
    EXPECT_TRUE(
        WaitFor([&] { return ReceivePacket(socket.get()).outcome == Packet::Outcome::kClosed; }));
  }
  ExpectUnharmed();
}

TEST_F(LocalHostileTest, AHelloInABatchIsRefused) {
  StartServer();
  const auto region = *ClientRegion::Make(kRegionBytes);
  std::vector<std::byte> packet(HelloMessage().bytes().begin(), HelloMessage().bytes().end());
  const std::vector<std::byte> pings = Pings(1);
  packet.insert(packet.end(), pings.begin(), pings.end());
  {
    const Fd socket = Raw();
    ASSERT_TRUE(SendPacket(socket.get(), packet, region->memfd()).ok());
    EXPECT_EQ(Answer(socket).code(), absl::StatusCode::kUnavailable);
  }
  fds_ += 1;  // `region` is still open here
  ExpectUnharmed();
}

TEST_F(LocalHostileTest, TheWrongDescriptors) {
  StartServer();
  const TempDir folder;
  const auto try_fd = [&](Fd fd) {
    const Fd socket = Raw();
    CAIRN_CHECK(SendPacket(socket.get(), HelloMessage().bytes(), fd.get()).ok());
    return Answer(socket).code();
  };
  const auto memfd = [](uint64_t bytes, int seals) {
    Fd fd(memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    CAIRN_CHECK(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
    CAIRN_CHECK(seals == 0 || fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
    return fd;
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_EQ(try_fd(Fd()), kInvalid);  // none
  EXPECT_EQ(try_fd(memfd(kRegionBytes, 0)), kInvalid);
  EXPECT_EQ(try_fd(memfd(kRegionBytes, F_SEAL_SHRINK)), kInvalid);
  EXPECT_EQ(try_fd(memfd(kRegionBytes, F_SEAL_GROW)), kInvalid);
  EXPECT_EQ(try_fd(memfd(kRegionBytes, kSeals | F_SEAL_FUTURE_WRITE)), kInvalid);
  EXPECT_EQ(try_fd(memfd(0, kSeals)), kInvalid);
  EXPECT_EQ(try_fd(memfd(kRegionBytes / 2, kSeals)), kInvalid);  // not what the hello says
  EXPECT_EQ(try_fd(memfd(kRegionBytes * 2, kSeals)), kInvalid);
  EXPECT_EQ(try_fd(memfd(kRegionBytes, kSeals)), kInvalid);       // a hole
  EXPECT_EQ(try_fd(memfd(uint64_t{2} << 30, kSeals)), kInvalid);  // over region_bytes_max
  Fd plain(open(folder.File("plain").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  CAIRN_CHECK(ftruncate(plain.get(), kRegionBytes) == 0);
  EXPECT_EQ(try_fd(std::move(plain)), kInvalid);
  const std::string shared = "/dev/shm/cairn-hostile-" + std::to_string(getpid());
  if (Fd shm(open(shared.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)); shm.is_valid()) {
    unlink(shared.c_str());
    CAIRN_CHECK(ftruncate(shm.get(), kRegionBytes) == 0);
    EXPECT_EQ(try_fd(std::move(shm)), kInvalid);
  }
  int ends[2];
  CAIRN_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  EXPECT_EQ(try_fd(Fd(ends[0])), kInvalid);
  EXPECT_EQ(try_fd(Fd(ends[1])), kInvalid);
  EXPECT_EQ(try_fd(Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))), kInvalid);
  EXPECT_EQ(try_fd(Fd(open("/dev/zero", O_RDWR | O_CLOEXEC))), kInvalid);
  EXPECT_EQ(daemon_.hellos.load(), 1);
  ExpectUnharmed();
}

// As many copies of `fd` as `count` in one packet. False: the kernel refuses them.
bool SendManyFds(const Fd& socket, std::span<const std::byte> bytes, int fd, size_t count) {
  std::vector<int> copies(count, fd);
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  std::vector<std::byte> control(CMSG_SPACE(count * sizeof(int)));
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(rights), copies.data(), count * sizeof(int));
  const bool is_sent = sendmsg(socket.get(), &header, MSG_NOSIGNAL) > 0;
  CAIRN_CHECK(is_sent || errno == EPERM);
  return is_sent;
}

TEST_F(LocalHostileTest, TooManyDescriptorsAreClosed) {
  StartServer();
  const auto region = *ClientRegion::Make(kRegionBytes);
  for (const size_t count : {2, 3, 250, 253}) {
    const Fd socket = Raw();
    CAIRN_CHECK(SendManyFds(socket, HelloMessage().bytes(), region->memfd(), count));
    EXPECT_FALSE(Answer(socket).ok()) << count;
  }
  // And after the hello, where none is due.
  const Fd socket = RawOpen(*region);
  const MessageBytes get = Serialize({}, proto::Serialize(GetFrame(1, KeyOf(1), 0)));
  if (!SendManyFds(socket, get.bytes(), region->memfd(), 100)) shutdown(socket.get(), SHUT_RDWR);
  EXPECT_EQ(Answer(socket).code(), absl::StatusCode::kUnavailable);
  fds_ += 2;  // `region` and `socket` are still open here
  ExpectUnharmed();
}

TEST_F(LocalHostileTest, TheFirstFrameMustBeAHello) {
  StartServer();
  const auto region = *ClientRegion::Make(kRegionBytes);
  {
    const Fd socket = Raw();
    const MessageBytes get = Serialize({}, proto::Serialize(GetFrame(1, KeyOf(1), 0)));
    ASSERT_TRUE(SendPacket(socket.get(), get.bytes(), region->memfd()).ok());
    EXPECT_EQ(Answer(socket).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Answer(socket).code(), absl::StatusCode::kUnavailable);
    MessageBytes damaged = HelloMessage();
    damaged.data[damaged.size - 1] ^= std::byte{1};
    const Fd second = Raw();
    ASSERT_TRUE(SendPacket(second.get(), damaged.bytes(), region->memfd()).ok());
    EXPECT_EQ(Answer(second).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(daemon_.hellos.load(), 1);
  fds_ += 1;
  ExpectUnharmed();
}

TEST_F(LocalHostileTest, PlacesOutsideTheRegion) {
  StartServer();
  const int over_before = daemon_.transfers_begun.load();
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  const uint64_t edges[] = {1,
                            4096,
                            kRegionBytes - 1,
                            kRegionBytes,
                            kRegionBytes + 1,
                            kMax - kRegionBytes,
                            kMax - kRegionBytes + 1,
                            kMax / 2,
                            kMax - 1,
                            kMax};
  int refused = 0;
  for (const uint64_t place : edges) {
    for (const uint64_t bytes : edges) {
      const bool lies_within = bytes <= kRegionBytes && place <= kRegionBytes - bytes;
      if (lies_within) {
        continue;
      }
      for (const bool in_reply : {false, true}) {
        const auto region = *ClientRegion::Make(kRegionBytes);
        const Fd socket = RawOpen(*region);
        Envelope envelope;
        (in_reply ? envelope.reply_place : envelope.payload_place) = place;
        (in_reply ? envelope.reply_capacity_bytes : envelope.payload_bytes) = bytes;
        const MessageBytes message =
            Serialize(envelope, proto::Serialize(GetFrame(1, KeyOf(1), 0)));
        ASSERT_TRUE(SendPacket(socket.get(), message.bytes()).ok());
        EXPECT_EQ(Answer(socket).code(), absl::StatusCode::kUnavailable) << place << " " << bytes;
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
  // Nothing but the hellos was answered.
  EXPECT_EQ(daemon_.transfers_begun.load() - over_before, refused);
  ExpectUnharmed();
}

// Sends `bytes` with a descriptor whose close() takes a minute.
LingeringSocket SendSlow(const Fd& socket, std::span<const std::byte> bytes) {
  LingeringSocket lingering = MakeLingeringSocket(60);
  lingering.LetGo(SendPacket(socket.get(), bytes, lingering.socket.get()).ok());
  return lingering;
}

// While it exists, the thread that accepts connections runs only when the calling thread waits.
class SlowGreeter {
 public:
  SlowGreeter() {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
    CAIRN_CHECK(sched_getaffinity(0, sizeof before_, &before_) == 0);
    CAIRN_CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::ifstream(task.path() / "comm") >> name;
      if (name != "cairn-greet") continue;
      const pid_t id = std::stoi(task.path().filename());
      const sched_param none{};
      CAIRN_CHECK(sched_setaffinity(id, sizeof one, &one) == 0 &&
                  sched_setscheduler(id, SCHED_IDLE, &none) == 0);
    }
  }
  ~SlowGreeter() { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_;
};

// To close what a stranger sends may take as long as the stranger likes. Nobody waits for it: not
// who has a connection, nor who wants one, nor who stops the server.
TEST_F(LocalHostileTest, DescriptorsThatAreSlowToCloseHoldNobodyUp) {
  constexpr absl::Duration kSoon = absl::Seconds(10);
  StartServer({.lanes = 1});
  const MessageBytes hello = HelloMessage();
  std::vector<LingeringSocket> sent;
  const absl::Time begun = MonotonicNow();
  for (int i = 0; i < 20; ++i) {
    const Fd socket = Raw();
    sent.push_back(SendSlow(socket, i % 2 == 0 ? hello.bytes() : hello.bytes().first(10)));
    for (int more = 0; more < 3; ++more) sent.push_back(SendSlow(socket, hello.bytes()));
  }
  EXPECT_NE(Connect(), nullptr);
  ExpectOthersServed();
  EXPECT_LT(MonotonicNow() - begun, kSoon);
  const SlowGreeter slow;
  std::vector<Fd> late;  // the last ones are never accepted
  for (int i = 0; i < 30; ++i) {
    late.push_back(Raw());
    sent.push_back(SendSlow(late.back(), hello.bytes()));
  }
  const absl::Time stopped = MonotonicNow();
  server_->Stop();
  EXPECT_LT(MonotonicNow() - stopped, kSoon);
}

// As SO_PASSRIGHTS is where the kernel has none of it.
void LetAllSocketsTakeDescriptors() {
  constexpr int kPassRights = 83, kFdsLookedAt = 1024;
  const int on = 1;
  for (int fd = 0; fd < kFdsLookedAt; ++fd) setsockopt(fd, SOL_SOCKET, kPassRights, &on, sizeof on);
}

// A kernel before Linux 6.16 lets them come at any time.
TEST_F(LocalHostileTest, OnAnOlderKernelALaneClosesNoDescriptors) {
  constexpr absl::Duration kSoon = absl::Seconds(10);
  StartServer({.lanes = 1});
  const MessageBytes get = Serialize({}, proto::Serialize(GetFrame(1, KeyOf(1), 0)));
  std::vector<LingeringSocket> sent;
  const absl::Time begun = MonotonicNow();
  for (int i = 0; i < 4; ++i) {
    const auto region = *ClientRegion::Make(kRegionBytes);
    const Fd socket = RawOpen(*region);
    LetAllSocketsTakeDescriptors();
    for (int more = 0; more < 3; ++more) sent.push_back(SendSlow(socket, get.bytes()));
    EXPECT_EQ(Answer(socket).code(), absl::StatusCode::kUnavailable);
  }
  ExpectOthersServed();
  EXPECT_EQ(Metric("cairn_transport_peers_broken_total"), 4);
  EXPECT_LT(MonotonicNow() - begun, kSoon);
  sent.clear();
  ExpectUnharmed();
}

}  // namespace
}  // namespace cairn::transport
