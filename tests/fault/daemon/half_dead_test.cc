// SPDX-License-Identifier: Apache-2.0
// Clients that are neither dead nor alive: stopped processes, whose kernel goes on answering for
// them, and clients behind a network that has gone silent. The control channel notices, in bounded
// time, and what they held comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/fault/daemon/tcp_proxy.h"
#include "tests/support/sanitizer.h"

namespace cairn {
namespace {

// docs/guides/memory.md: within 15 s. With room for a slow machine.
constexpr absl::Duration kNoticedWithin = absl::Seconds(25);
const absl::Duration kOthersWaitMax = absl::Seconds(3) * kSlowdown;

class HalfDeadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> flags = WireFlags(kWires[std::size(kWires) - 1]);
    flags.emplace_back("--host-bytes=256MiB");
    auto daemon = DaemonProcess::Start(flags);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    auto honest = RawClient::Open(daemon_->endpoint("control"));
    ASSERT_TRUE(honest.ok()) << honest.status();
    honest_ = *std::move(honest);
    const auto space = honest_->OpenSpace(ToySpec("test", shape_));
    auto connection = honest_->Dial(uint64_t{32} << 20);
    ASSERT_TRUE(space.ok() && connection.ok());
    space_ = *space;
    connection_ = *std::move(connection);
    for (uint64_t i = 0; i < kWorkerContents; ++i) {
      contents_.push_back(ToySource(i, shape_.whole(), shape_));
      keys_.push_back(ToyKey(i));
      const auto frame = honest_->PutFrame(space_, keys_[i], shape_.whole(), contents_[i], shape_);
      ASSERT_TRUE(AskOk(*connection_, frame, contents_[i]).ok());
    }
    target_.resize(contents_[0].size());
  }

  // A getter (which holds a lease) and a putter over each data plane, at work.
  void StartWorkers() {
    for (const Wire wire : kWires) {
      for (const char* mode : {"get", "put"}) {
        auto worker = ChildProcess::Start(CAIRN_TEST_WORKER,
                                          {daemon_->endpoint("control"), mode, WireName(wire),
                                           absl::StrCat(workers_.size() + 1)});
        ASSERT_TRUE(worker.ok());
        workers_.push_back(*std::move(worker));
      }
    }
    for (const auto& worker : workers_) ASSERT_TRUE(worker->ReadLine(absl::Seconds(30)).ok());
  }

  // How long the honest client waited for its bytes.
  absl::Duration Work(uint64_t block) {
    const absl::Time asked = MonotonicNow();
    const auto frame = honest_->GetFrame(space_, keys_[block], shape_.whole(), target_.size());
    const auto got = AskOk(*connection_, frame, {}, target_);
    EXPECT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(target_ == contents_[block]) << "wrong bytes";
    return MonotonicNow() - asked;
  }

  const ToyShape shape_ = BigToy();
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> honest_;
  std::unique_ptr<transport::Connection> connection_;
  uint64_t space_ = 0;
  std::vector<std::vector<std::byte>> contents_;
  std::vector<proto::BlockKey> keys_;
  std::vector<std::byte> target_;
  std::vector<std::unique_ptr<ChildProcess>> workers_;
};

TEST_F(HalfDeadTest, TheirSessionsEndInBoundedTime) {
  StartWorkers();
  // One behind a network that goes silent, with a lease.
  TcpProxy proxy(daemon_->port("control"));
  const auto cut_off = RawClient::Open(absl::StrCat("127.0.0.1:", proxy.port()));
  ASSERT_TRUE(cut_off.ok()) << cut_off.status();
  auto match = (*cut_off)->MatchOf(space_, keys_);
  match.set_lease(true);
  ASSERT_EQ((*cut_off)->Match(match)->block_count(), kWorkerContents);
  EXPECT_EQ(daemon_->Metric("cairn_sessions"), 2.0 + static_cast<double>(workers_.size()));
  EXPECT_EQ(daemon_->Metric("cairn_leases"), 1.0 + std::size(kWires));

  for (const auto& worker : workers_) worker->Signal(SIGSTOP);
  proxy.Stall();
  const absl::Time began = MonotonicNow();
  absl::Duration longest;
  for (uint64_t i = 0; daemon_->Metric("cairn_sessions") > 1; ++i) {
    ASSERT_LT(MonotonicNow() - began, kNoticedWithin) << daemon_->ReadLog();
    longest = std::max(longest, Work(i % kWorkerContents));
    absl::SleepFor(absl::Milliseconds(100));
  }
  EXPECT_LT(longest, kOthersWaitMax) << "others had to wait";
  for (const char* held : {"cairn_leases", "cairn_staging_used_bytes", "cairn_tier_pinned_bytes",
                           "cairn_quarantine_bytes", "cairn_transport_quarantine_bytes",
                           "cairn_transport_arrivals", "cairn_data_requests_in_flight"}) {
    EXPECT_TRUE(daemon_->AwaitMetric(held, 0, absl::Seconds(5))) << held << daemon_->Metric(held);
  }
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_data_peers", 1, absl::Seconds(5)));
  // Who wakes up finds its session ended, and ends.
  for (const auto& worker : workers_) worker->Signal(SIGCONT);
  for (const auto& worker : workers_) EXPECT_EQ(worker->Wait(absl::Seconds(20)).value_or(-1), 1);
  EXPECT_TRUE(daemon_->process().is_running());
}

}  // namespace
}  // namespace cairn
