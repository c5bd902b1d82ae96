// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/handshakes.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/mutex.h"
#include "tests/support/metric_capture.h"
#include "tests/support/raw_tls.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_certificates.h"
#include "tests/support/wait.h"

namespace cairn::transport {
namespace {

class HandshakesTest : public testing::Test {
 protected:
  void Start(const HandshakeLimits& limits = {}) {
    handshakes_ = std::make_unique<Handshakes>(*files_, limits);
    handshakes_->Start();
    Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    CAIRN_CHECK(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0);
    CAIRN_CHECK(::listen(listener.get(), 1024) == 0);
    ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
    address_ = address;
    door_ = handshakes_->Listen(
        std::move(listener), {.name = "test", .alpn = "test/1", .done = [this](TlsArrival arrival) {
                                const MutexLock lock(mutex_);
                                arrived_.push_back(std::move(arrival));
                              }});
  }
  Fd Connect() {
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CAIRN_CHECK(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_),
                          sizeof address_) == 0);
    return socket;
  }
  // A whole handshake of a good client.
  bool Arrive() {
    const Fd socket = Connect();
    SocketChannel channel(socket.get());
    TlsSession session(client_files_->context(), TlsRole::kClient,
                       {.alpn = "test/1", .server_name = "localhost"}, channel);
    const size_t before = ArrivedCount();
    const absl::Time until = MonotonicNow() + absl::Seconds(10);
    while (MonotonicNow() < until) {
      const TlsStep step = session.Handshake();
      if (step == TlsStep::kFailed) return false;
      if (step == TlsStep::kDone) return WaitFor([&] { return ArrivedCount() > before; });
      pollfd ready{socket.get(), POLLIN, 0};
      ::poll(&ready, 1, 1000);
    }
    return false;
  }
  size_t ArrivedCount() {
    const MutexLock lock(mutex_);
    return arrived_.size();
  }
  double Refused(const std::string& outcome) {
    MetricCapture metrics;
    handshakes_->Report(metrics);
    return metrics.Value("cairn_tls_handshakes_total{door=\"test\",outcome=\"" + outcome + "\"}");
  }
  // Until the daemon has closed it.
  static bool IsClosed(const Fd& socket, absl::Duration within = absl::Seconds(10)) {
    pollfd ready{socket.get(), POLLIN, 0};
    char byte = 0;
    return ::poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(within))) == 1 &&
           ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) <= 0;
  }

  TempDir folder_;
  TestPki pki_{folder_.path().string()};
  std::unique_ptr<TlsFiles> files_ =
      *TlsFiles::Open({.certificate = pki_.File("server.pem"),
                       .key = pki_.File("server.key"),
                       .ca = {{.domain = "", .path = pki_.File("ca.pem")}},
                       .crl = ""},
                      TlsRole::kServer);
  std::unique_ptr<TlsFiles> client_files_ =
      *TlsFiles::Open({.certificate = pki_.File("client.pem"),
                       .key = pki_.File("client.key"),
                       .ca = {{.domain = "", .path = pki_.File("ca.pem")}},
                       .crl = ""},
                      TlsRole::kClient);
  Mutex mutex_;
  std::vector<TlsArrival> arrived_ ABSL_GUARDED_BY(mutex_);
  sockaddr_in address_{};
  int door_ = 0;
  std::unique_ptr<Handshakes> handshakes_;  // destroyed first: `done` uses the others
};

TEST_F(HandshakesTest, AGoodClientArrivesWithItsName) {
  Start();
  ASSERT_TRUE(Arrive());
  const MutexLock lock(mutex_);
  EXPECT_EQ(arrived_[0].session->peer().uri, "spiffe://test.example/ns/team-a/sa/engine");
}

TEST_F(HandshakesTest, PlaintextIsClosedAndCounted) {
  Start();
  const Fd socket = Connect();
  ASSERT_EQ(::send(socket.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
  EXPECT_TRUE(WaitFor([&] { return Refused("plaintext") == 1; }));
}

TEST_F(HandshakesTest, ASilentPeerEndsInTime) {
  Start({.time_max = absl::Milliseconds(100)});
  const Fd socket = Connect();
  EXPECT_TRUE(IsClosed(socket));
  EXPECT_EQ(Refused("late"), 1);
}

TEST_F(HandshakesTest, TooManyBytesBeforeTheProofEndIt) {
  Start();
  const Fd socket = Connect();
  // Records of a handshake message that never ends.
  std::string flood;
  while (flood.size() < (64u << 10)) {
    flood.append("\x16\x03\x01\x10\x00\x01\x00\xff\xff", 9);
    flood.append(4092, 'x');
  }
  ::send(socket.get(), flood.data(), flood.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(WaitFor([&] { return Refused("over_budget") + Refused("protocol") == 1; }));
}

// A flood of silent peers of one address takes neither the memory nor the turn of a good client.
TEST_F(HandshakesTest, AGoodClientIsServedThroughAFlood) {
  Start({.silence_max = absl::Milliseconds(20)});
  std::vector<Fd> flood;
  for (int i = 0; i < 400; ++i) flood.push_back(Connect());
  EXPECT_TRUE(Arrive());
  MetricCapture metrics;
  handshakes_->Report(metrics);
  EXPECT_LE(metrics.Value("cairn_tls_handshakes_running"), 8);
}

// Peers of many addresses that say a little, so that they are not silent, and nothing more.
TEST_F(HandshakesTest, AGoodClientIsServedThroughSlowOnes) {
  Start();
  std::vector<Fd> slow;
  for (uint32_t i = 0; i < 150; ++i) {
    slow.push_back(ConnectFrom(255 + i % 75, ntohs(address_.sin_port)));
    ASSERT_EQ(::send(slow.back().get(), "\x16", 1, MSG_NOSIGNAL), 1);
  }
  const auto running = [&] {
    MetricCapture metrics;
    handshakes_->Report(metrics);
    return metrics.Value("cairn_tls_handshakes_running");
  };
  ASSERT_TRUE(WaitFor([&] { return running() == HandshakeLimits{}.running_max; }));
  const absl::Time asked = MonotonicNow();
  EXPECT_TRUE(Arrive());
  EXPECT_LT(MonotonicNow() - asked, absl::Seconds(3) * kSlowdown);
  EXPECT_GE(Refused("over_budget"), 1);
}

TEST_F(HandshakesTest, AClosedDoorDropsItsPeers) {
  Start();
  const Fd socket = Connect();
  ASSERT_TRUE(Arrive());
  handshakes_->Close(door_);
  EXPECT_TRUE(IsClosed(socket));
  handshakes_->Stop();
  handshakes_->Close(door_);  // once more does no harm
}

TEST_F(HandshakesTest, ARotationTakesEffectForTheNextClient) {
  Start();
  ASSERT_TRUE(Arrive());
  const TestCertificate next = pki_.ca().Issue({.dns = {"localhost"}, .common_name = "next"});
  WriteTestFile(pki_.File("server.pem"), next.certificate);
  WriteTestFile(pki_.File("server.key"), next.key);
  EXPECT_TRUE(WaitFor([&] { return files_->generation() >= 2; }));
  EXPECT_TRUE(Arrive());
}

}  // namespace
}  // namespace cairn::transport
