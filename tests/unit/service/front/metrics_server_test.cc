// SPDX-License-Identifier: Apache-2.0
#include "service/front/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class MetricsServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = MetricsServer::Start(
        {"127.0.0.1", 0},
        {.report =
             [](MetricSink& sink) {
               const MetricLabel label{"tier", "host"};
               sink.AddGauge("cairn_test_bytes", "Help.", {&label, 1}, 12);
               Histogram histogram(LatencyBounds());
               histogram.Observe(0.001);
               histogram.Observe(100.0);
               sink.AddHistogram("cairn_test_seconds", "Help.", {}, histogram.Snapshot());
             },
         .readiness =
             [this] { return is_ready_ ? absl::OkStatus() : absl::UnavailableError("draining"); }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  Fd Connect() {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->address().port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval limit{10, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
  }

  static std::string ReadAll(int fd) {
    std::string all;
    char bytes[4096];
    ssize_t count = 0;
    while ((count = ::recv(fd, bytes, sizeof bytes, 0)) > 0)
      all.append(bytes, static_cast<size_t>(count));
    return all;
  }

  std::string Ask(const std::string& request) {
    const Fd fd = Connect();
    EXPECT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    return ReadAll(fd.get());
  }

  std::atomic<bool> is_ready_{true};
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, ServesMetricsAsText) {
  const std::string reply = Ask("GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("cairn_test_bytes{tier=\"host\"} 12\n"));
  EXPECT_THAT(reply, HasSubstr("cairn_test_seconds_bucket{le=\"+Inf\"} 2\n"));
  EXPECT_THAT(reply, HasSubstr("cairn_test_seconds_count 2\n"));
  EXPECT_THAT(reply, HasSubstr("# TYPE cairn_http_requests_total counter"));
}

TEST_F(MetricsServerTest, ReadinessFollowsItsSource) {
  EXPECT_THAT(Ask("GET /readyz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  is_ready_ = false;
  const std::string reply = Ask("GET /readyz HTTP/1.1\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(reply, HasSubstr("draining"));
  EXPECT_THAT(Ask("GET /healthz HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsServerTest, WrongRequestsGetTypedAnswers) {
  EXPECT_THAT(Ask("GET /other HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask("\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(std::string("\x16\x03\x01\0\r\n\r\n", 8)), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask("GET /" + std::string(9000, 'a')), StartsWith("HTTP/1.1 431 "));
  const std::string head = Ask("HEAD /healthz HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_EQ(head.substr(head.size() - 4), "\r\n\r\n");
}

TEST_F(MetricsServerTest, SilentPeersGiveWay) {
  std::vector<Fd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(Connect());
  EXPECT_THAT(Ask("GET /healthz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsServerTest, TheAddressIsTakenOnce) {
  const auto second = MetricsServer::Start(server_->address(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("127.0.0.1:"));
}

TEST_F(MetricsServerTest, StopEndsIt) {
  const Fd fd = Connect();
  server_->Stop();
  EXPECT_EQ(ReadAll(fd.get()), "");
  server_->Stop();
}

// A crowd that says nothing, between an honest client and the server's first look at it.
TEST(HttpServerTest, AFloodOfConnectionsPushesNoRequestOut) {
  auto bound = HttpServer::Bind({"127.0.0.1", 0});
  ASSERT_TRUE(bound.ok()) << bound.status();
  HttpServer& server = **bound;
  const auto connect = [&server] {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server.address().port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  };
  const Fd honest = connect();
  const std::string request = "GET /healthz HTTP/1.1\r\n\r\n";
  ASSERT_EQ(::send(honest.get(), request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  std::vector<Fd> crowd;
  for (int i = 0; i < 100; ++i) crowd.push_back(connect());
  server.Start([](std::string_view) { return HttpServer::Response{.body = "ok\n"}; });
  const timeval limit{10, 0};
  ::setsockopt(honest.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  char bytes[64] = {};
  EXPECT_GT(::recv(honest.get(), bytes, sizeof bytes - 1, 0), 0);
  EXPECT_THAT(std::string(bytes), StartsWith("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace cairn
