// SPDX-License-Identifier: Apache-2.0
#pragma once
// A liar and an honest client of one daemon, over one data plane.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"

namespace cairn {

class LiarFixture : public ::testing::Test {
 protected:
  explicit LiarFixture(Wire wire) : wire_(wire) {}

  void SetUp() override {
    auto daemon = DaemonProcess::Start(WireFlags(wire_));
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
    EXPECT_EQ(daemon_->Metric("cairn_quarantine_bytes"), 0);
    EXPECT_EQ(daemon_->Metric("cairn_transport_quarantine_bytes"), 0);
    EXPECT_EQ(daemon_->Metric("cairn_transport_arrivals"), 0);
    EXPECT_TRUE(daemon_->process().is_running()) << daemon_->ReadLog();
  }

  std::unique_ptr<RawClient> Open() {
    auto client = RawClient::Open(daemon_->endpoint("control"));
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  std::unique_ptr<transport::Connection> Dial(RawClient& client) {
    auto connection = client.DialOver(wire_, client.ticket());
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

  const Wire wire_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> honest_, liar_;
  std::unique_ptr<transport::Connection> honest_connection_, connection_;
  uint64_t space_ = 0;
  std::vector<std::byte> payload_;
};

}  // namespace cairn
