// SPDX-License-Identifier: Apache-2.0
#pragma once
// The fixture of all conformance tests.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "tests/conformance/transport/test_daemon.h"
#include "tests/conformance/transport/transport_under_test.h"
#include "tests/support/metric_capture.h"

namespace cairn::transport {

class TransportTest : public testing::Test {
 protected:
  // The daemon's hooks are to be set before.
  void StartServer(const ServerLimits& limits = {}) {
    auto server = transport_->StartServer(limits, daemon_);
    CAIRN_CHECK(server.ok(), server.status().ToString());
    server_ = *std::move(server);
  }

  absl::StatusOr<std::unique_ptr<Connection>> TryConnect(uint32_t window = 16,
                                                         absl::Duration wait = absl::Seconds(10)) {
    return transport_->Connect(*server_, HelloFrame(window), MonotonicNow() + wait);
  }
  std::unique_ptr<Connection> Connect(uint32_t window = 16) {
    auto connection = TryConnect(window);
    CAIRN_CHECK(connection.ok(), connection.status().ToString());
    return *std::move(connection);
  }

  // The value of one of the server's metrics, over all labels.
  double Metric(const std::string& name) {
    MetricCapture capture;
    server_->Report(capture);
    double sum = 0;
    for (const auto& [series, value] : capture.values()) {
      sum += series.substr(0, series.find('{')) == name ? value : 0;
    }
    return sum;
  }

  // Every transfer that began is over and nothing is held.
  bool IsAtRest() {
    return daemon_.transfers_begun.load() == daemon_.transfers_over.load() &&
           Metric("cairn_transport_arrivals") == 0 &&
           Metric("cairn_transport_quarantine_bytes") == 0;
  }

  void TearDown() override {
    if (server_ != nullptr) {
      server_->Stop();
      EXPECT_EQ(daemon_.transfers_begun.load(), daemon_.transfers_over.load());
    }
  }

  std::unique_ptr<TransportUnderTest> transport_ = MakeTransport();
  TestDaemon daemon_;
  std::unique_ptr<Server> server_;
};

}  // namespace cairn::transport
