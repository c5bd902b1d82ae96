// SPDX-License-Identifier: Apache-2.0
#pragma once
// The fixture of the tests of clients that lie to the local transport.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "tests/conformance/transport/test_daemon.h"
#include "tests/support/metric_capture.h"
#include "tests/support/temp_dir.h"
#include "transport/connect.h"
#include "transport/local/region.h"
#include "transport/local/server.h"
#include "transport/local/socket.h"

namespace cairn::transport {

inline constexpr uint64_t kRegionBytes = 1 << 20;

class LocalHostileTest : public testing::Test {
 protected:
  void StartServer(const ServerLimits& limits = {}) {
    auto server = StartLocalServer({path_, limits}, daemon_);
    CAIRN_CHECK(server.ok(), server.status().ToString());
    server_ = *std::move(server);
    good_ = Connect();
    fds_ = FdCount();
  }
  std::unique_ptr<Connection> Connect() {
    ConnectOptions options;
    options.region_bytes = kRegionBytes;
    auto connection = transport::Connect("unix:" + path_, HelloFrame(), options,
                                         MonotonicNow() + absl::Seconds(10));
    CAIRN_CHECK(connection.ok(), connection.status().ToString());
    return *std::move(connection);
  }
  Fd Raw() {
    auto socket = ConnectSocketFile(path_, MonotonicNow() + absl::Seconds(5));
    CAIRN_CHECK(socket.ok(), socket.status().ToString());
    return *std::move(socket);
  }
  // A raw socket whose hello was taken.
  Fd RawOpen(const ClientRegion& region) {
    Fd socket = Raw();
    CAIRN_CHECK(SendPacket(socket.get(), HelloMessage().bytes(), region.memfd()).ok());
    CAIRN_CHECK(Answer(socket).ok());
    return socket;
  }

  static MessageBytes HelloMessage(uint64_t region_bytes = kRegionBytes) {
    proto::Frame hello = HelloFrame();
    std::get<proto::Hello>(hello.body).region_bytes = region_bytes;
    return Serialize({}, proto::Serialize(hello));
  }

  // The status of the next reply; Unavailable when the connection was dropped instead.
  static absl::Status Answer(const Fd& socket) {
    Packet packet;
    const bool has_come = WaitFor([&] {
      packet = ReceivePacket(socket.get());
      return packet.outcome != Packet::Outcome::kNothing;
    });
    CAIRN_CHECK(has_come, "neither an answer nor an end");
    if (packet.outcome == Packet::Outcome::kClosed) {
      return absl::UnavailableError("dropped");
    }
    const auto message = ParseMessage(packet.bytes(), Direction::kReply);
    CAIRN_CHECK(message.ok());
    const auto frame = proto::ParseFrame(message->frame.bytes());
    CAIRN_CHECK(frame.ok());
    return proto::StatusOf(*frame);
  }

  // Another client's work goes on.
  void ExpectOthersServed() {
    const std::vector<std::byte> bytes = Pattern(100'000, 1);
    Call put;
    put.payload = bytes;
    EXPECT_EQ(Exchange(*good_, put, PutFrame(++good_seq_, KeyOf(1), bytes)), absl::OkStatus());
    std::vector<std::byte> target(bytes.size());
    Call get;
    get.target = target;
    EXPECT_EQ(Exchange(*good_, get, GetFrame(++good_seq_, KeyOf(1), target.size())),
              absl::OkStatus());
    EXPECT_TRUE(target == bytes);
  }
  // It does, and everything the liars had is given back.
  void ExpectUnharmed() {
    ExpectOthersServed();
    EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_peers") == 1; }));
    EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_region_bytes") == kRegionBytes; }));
    EXPECT_TRUE(WaitFor([&] { return Metric("cairn_transport_newcomers") == 0; }));
    EXPECT_EQ(Metric("cairn_transport_arrivals"), 0);
    EXPECT_TRUE(WaitFor([&] { return FdCount() == fds_; })) << FdCount() << " of " << fds_;
  }
  double Metric(const std::string& name) {
    MetricCapture capture;
    server_->Report(capture);
    return capture.Value(name + "{transport=\"local\"}");
  }

  // Connections that ended before they had a session, for that reason.
  double Dropped(const std::string& reason) {
    MetricCapture capture;
    server_->Report(capture);
    return capture.Value("cairn_transport_newcomers_dropped_total{transport=\"local\",reason=\"" +
                         reason + "\"}");
  }

  const TempDir folder_;
  const std::string path_ = folder_.File("socket");
  TestDaemon daemon_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Connection> good_;
  uint64_t good_seq_ = 1000;
  int fds_ = 0;
};

}  // namespace cairn::transport
