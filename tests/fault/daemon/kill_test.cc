// SPDX-License-Identifier: Apache-2.0
// Clients that are killed in the middle of puts and gets, under load: what they held comes back,
// nothing half-done is seen, and others do not notice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"

namespace cairn {
namespace {

constexpr uint64_t kKeptBlocks = 4;

class KillTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start({"--host-bytes=256MiB"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    auto client = RawClient::Open(daemon_->endpoint("control"));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto space = client_->OpenSpace(ToySpec("test", shape_));
    ASSERT_TRUE(space.ok());
    space_ = *space;
    auto connection = client_->Dial(uint64_t{32} << 20);
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *std::move(connection);
    for (uint64_t i = 0; i < kKeptBlocks; ++i) {
      contents_.push_back(ToySource(i, shape_.whole(), shape_));
      ASSERT_TRUE(PutKept(i).ok());
    }
    bytes_per_image_ = daemon_->Metric("cairn_tier_used_bytes") / kKeptBlocks;
  }

  absl::Status PutKept(uint64_t i) {
    return AskOk(*connection_,
                 client_->PutFrame(space_, ToyKey(i), shape_.whole(), contents_[i], shape_),
                 contents_[i])
        .status();
  }

  // One round of an honest client: everything it put is there, or was evicted and is put again.
  void Work() {
    std::vector<std::byte> target(contents_[0].size());
    for (uint64_t i = 0; i < kKeptBlocks; ++i) {
      const auto reply =
          AskOk(*connection_, client_->GetFrame(space_, ToyKey(i), shape_.whole(), target.size()),
                {}, target);
      if (absl::IsNotFound(reply.status())) {
        const absl::Status put = PutKept(i);
        if (!put.ok() && !absl::IsResourceExhausted(put)) errors_.push_back(put.ToString());
      } else if (!reply.ok()) {
        errors_.push_back(reply.status().ToString());
      } else if (target != contents_[i]) {
        errors_.emplace_back("wrong bytes");
      }
      ++rounds_;
    }
  }

  std::unique_ptr<ChildProcess> StartWorker(const std::string& mode, int seed) {
    auto worker = ChildProcess::Start(CAIRN_TEST_WORKER,
                                      {daemon_->endpoint("control"), mode, absl::StrCat(seed)});
    EXPECT_TRUE(worker.ok());
    const auto line = (*worker)->ReadLine(absl::Seconds(30));
    EXPECT_TRUE(line.ok()) << mode << ": " << line.status();
    return *std::move(worker);
  }

  const ToyShape shape_ = BigToy();
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> client_;
  std::unique_ptr<transport::Connection> connection_;
  uint64_t space_ = 0;
  double bytes_per_image_ = 0;
  std::vector<std::vector<std::byte>> contents_;
  std::vector<std::string> errors_;
  uint64_t rounds_ = 0;
};

TEST_F(KillTest, WhatKilledClientsHeldComesBack) {
  for (int round = 0; round < 5; ++round) {
    std::vector<std::unique_ptr<ChildProcess>> workers;
    workers.push_back(StartWorker("put", 10 + round * 2));
    workers.push_back(StartWorker("put", 11 + round * 2));
    workers.push_back(StartWorker("get", 0));
    std::atomic<bool> is_over{false};
    std::thread honest([&] {
      while (!is_over) Work();
    });
    absl::SleepFor(absl::Milliseconds(150 + 37 * round));
    for (const auto& worker : workers) {
      EXPECT_TRUE(worker->is_running()) << "it ended by itself";
      worker->Signal(SIGKILL);
    }
    absl::SleepFor(absl::Milliseconds(50));
    is_over = true;
    honest.join();
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_sessions", 1, absl::Seconds(10))) << round;
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_staging_used_bytes", 0, absl::Seconds(5))) << round;
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_tier_pinned_bytes", 0, absl::Seconds(5))) << round;
    EXPECT_EQ(daemon_->Metric("cairn_quarantine_bytes"), 0);
    EXPECT_EQ(daemon_->Metric("cairn_transport_quarantine_bytes"), 0);
    EXPECT_EQ(daemon_->Metric("cairn_data_requests_in_flight"), 0);
    EXPECT_EQ(daemon_->Metric("cairn_tier_used_bytes"),
              daemon_->Metric("cairn_images") * bytes_per_image_)
        << "bytes used are the bytes published";
  }
  EXPECT_GT(rounds_, 20u);
  EXPECT_THAT(errors_, ::testing::IsEmpty());
  EXPECT_EQ(daemon_->Metric("cairn_corrupt_tiles_total"), 0);
  EXPECT_TRUE(daemon_->process().is_running());
}

// A client that stops without dying: its connection stays open, its frames stay unanswered for.
TEST_F(KillTest, AStoppedClientDoesNotHoldUpOthers) {
  const auto worker = StartWorker("get", 0);
  worker->Signal(SIGSTOP);
  const absl::Time began = MonotonicNow();
  for (int i = 0; i < 10; ++i) Work();
  EXPECT_LT(MonotonicNow() - began, absl::Seconds(10));
  EXPECT_THAT(errors_, ::testing::IsEmpty());
  worker->Signal(SIGKILL);
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_sessions", 1, absl::Seconds(10)));
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_tier_pinned_bytes", 0, absl::Seconds(5)));
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_data_peers", 1, absl::Seconds(5)));
}

// Far more is put than fits.
TEST(FullTest, EvictionKeepsTheDaemonWithinItsBudgets) {
  auto started = DaemonProcess::Start({"--host-bytes=64MiB", "--staging-bytes=192MiB"});
  ASSERT_TRUE(started.ok()) << started.status();
  DaemonProcess& daemon = **started;
  const ToyShape shape = BigToy();
  auto client = RawClient::Open(daemon.endpoint("control"));
  ASSERT_TRUE(client.ok());
  auto space = (*client)->OpenSpace(ToySpec("test", shape));
  auto connection = (*client)->Dial(uint64_t{32} << 20);
  ASSERT_TRUE(space.ok() && connection.ok());
  const auto content = ToySource(0, shape.whole(), shape);
  for (uint64_t block = 1; block <= 100; ++block) {
    proto::Frame frame = (*client)->PutFrame(*space, ToyKey(block), shape.whole(), content, shape);
    if (block > 1) {  // one long chain
      std::get<proto::Put>(frame.body).parent = ToyKey(block - 1);
      std::get<proto::Put>(frame.body).first_position = (block - 1) * shape.tokens;
    }
    const absl::Status status = AskOk(**connection, frame, content).status();
    ASSERT_TRUE(status.ok()) << block << ": " << status;
  }
  EXPECT_LE(daemon.Metric("cairn_tier_used_bytes"), 64 << 20);
  EXPECT_GT(daemon.Metric("cairn_evictions_total"), 80);
  // The arena's two budgets, and 96 MiB for code, threads, gRPC and the index.
  EXPECT_LE(daemon.Metric("cairn_process_anonymous_bytes"), (64.0 + 192 + 96) * (1 << 20));
  EXPECT_EQ(daemon.Metric("cairn_tier_pinned_bytes"), 0);
  EXPECT_EQ(daemon.Metric("cairn_staging_used_bytes"), 0);
}

}  // namespace
}  // namespace cairn
