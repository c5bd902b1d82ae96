// SPDX-License-Identifier: Apache-2.0
// The fault wrapper strikes where it is told to and nowhere else.
#include "tests/support/faulty_connection.h"

#include <gtest/gtest.h>

#include "tests/conformance/transport/test_daemon.h"
#include "transport/memory/memory.h"

namespace cairn::transport {
namespace {

class FaultyConnectionTest : public testing::Test {
 protected:
  std::unique_ptr<FaultyConnection> Connect() {
    auto real = server_->Connect(HelloFrame(), MonotonicNow() + absl::Seconds(10));
    return std::make_unique<FaultyConnection>(*std::move(real), faults_);
  }
  absl::Status Put(Connection& connection, absl::Duration wait = absl::Seconds(10)) {
    Call put;
    put.payload = bytes_;
    put.deadline = MonotonicNow() + wait;
    return Exchange(connection, put, PutFrame(seq_++, KeyOf(1), bytes_));
  }
  absl::Status Get(Connection& connection) {
    Call get;
    target_.assign(bytes_.size(), std::byte{0});
    get.target = target_;
    return Exchange(connection, get, GetFrame(seq_++, KeyOf(1), target_.size()));
  }

  TestDaemon daemon_;
  std::unique_ptr<MemoryServer> server_ = StartMemoryServer({}, daemon_);
  std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  const std::vector<std::byte> bytes_ = Pattern(100'000, 1);
  std::vector<std::byte> target_;
  uint64_t seq_ = 1;
};

TEST_F(FaultyConnectionTest, WithoutFaultsNothingChanges) {
  const auto connection = Connect();
  EXPECT_EQ(Put(*connection), absl::OkStatus());
  EXPECT_EQ(Get(*connection), absl::OkStatus());
  EXPECT_TRUE(target_ == bytes_);
  EXPECT_EQ(faults_->struck.load(), 0);
}

TEST_F(FaultyConnectionTest, FlipsABitOfARequest) {
  const auto connection = Connect();
  faults_->flip_request_bits = 1;
  EXPECT_EQ(Put(*connection).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Put(*connection), absl::OkStatus());
}

TEST_F(FaultyConnectionTest, FlipsABitOfAReply) {
  const auto connection = Connect();
  ASSERT_EQ(Put(*connection), absl::OkStatus());
  faults_->flip_reply_bits = 1;
  EXPECT_EQ(Get(*connection), absl::OkStatus());
  EXPECT_FALSE(target_ == bytes_);
  EXPECT_EQ(Get(*connection), absl::OkStatus());
  EXPECT_TRUE(target_ == bytes_);
}

TEST_F(FaultyConnectionTest, DelaysAReply) {
  const auto connection = Connect();
  faults_->delay_ms = 100;
  faults_->delay = 1;
  const absl::Time begun = MonotonicNow();
  EXPECT_EQ(Put(*connection), absl::OkStatus());
  EXPECT_GE(MonotonicNow() - begun, absl::Milliseconds(99));
}

TEST_F(FaultyConnectionTest, ADroppedCallEndsAtItsDeadline) {
  const auto connection = Connect();
  faults_->drop = 1;
  EXPECT_EQ(Put(*connection, absl::Milliseconds(100)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(connection->broken());
  EXPECT_EQ(Put(*connection).code(), absl::StatusCode::kUnavailable);
}

TEST_F(FaultyConnectionTest, RefusesACall) {
  const auto connection = Connect();
  faults_->refuse = 1;
  EXPECT_EQ(Put(*connection).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(connection->broken());
  EXPECT_EQ(Put(*Connect()), absl::OkStatus());
}

}  // namespace
}  // namespace cairn::transport
