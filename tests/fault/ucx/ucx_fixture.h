// SPDX-License-Identifier: Apache-2.0
#pragma once
// A UCX server on loopback in this process, and connections to it.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "tests/fault/ucx/test_store.h"
#include "tests/support/metric_capture.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/server.h"

namespace cairn::transport {

class UcxFixture : public ::testing::Test {
 protected:
  void StartServer(UcxLaneOptions lane_options = {}) {
    options.host = "127.0.0.1";
    absl::StatusOr<std::unique_ptr<Server>> started = StartUcxServer(options, lane_options, store);
    ASSERT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    const std::string address = server->address();
    port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }

  std::unique_ptr<UcxConnection> Connect(uint16_t to_port = 0) {
    proto::HelloReply reply;
    absl::StatusOr<std::unique_ptr<UcxConnection>> connection =
        UcxConnection::Connect("127.0.0.1", to_port == 0 ? port : to_port, HelloFrame(), {},
                               MonotonicNow() + absl::Seconds(10), &reply);
    EXPECT_TRUE(connection.ok()) << connection.status();
    return connection.ok() ? *std::move(connection) : nullptr;
  }

  // One put or get to its end.
  absl::Status Put(Connection& connection, std::span<const std::byte> payload, uint64_t seq,
                   absl::Duration within = absl::Seconds(20)) {
    Call call;
    call.request = PutRequest(seq, payload);
    call.payload = payload;
    call.deadline = MonotonicNow() + within;
    if (absl::Status status = connection.Start(&call); !status.ok()) return status;
    Finish(connection, call);
    if (!call.status.ok()) return call.status;
    const absl::StatusOr<proto::Frame> reply = proto::ParseFrame(call.reply.bytes());
    return reply.ok() ? proto::StatusOf(*reply) : reply.status();
  }
  absl::Status Get(Connection& connection, std::span<std::byte> target, uint64_t seq,
                   absl::Duration within = absl::Seconds(20)) {
    Call call;
    call.request = GetRequest(seq, target.size());
    call.target = target;
    call.deadline = MonotonicNow() + within;
    if (absl::Status status = connection.Start(&call); !status.ok()) return status;
    Finish(connection, call);
    if (call.status.ok() && call.reply_payload_bytes != target.size()) {
      return absl::DataLossError("short");
    }
    return call.status;
  }

  double Metric(const std::string& name) const {
    MetricCapture metrics;
    server->Report(metrics);
    return metrics.Value(name + "{transport=\"ucx\"}");
  }

  UcxServerOptions options;
  TestStore store{size_t{64} << 20};
  std::unique_ptr<Server> server;
  uint16_t port = 0;
};

}  // namespace cairn::transport
