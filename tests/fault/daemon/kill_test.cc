// SPDX-License-Identifier: Apache-2.0
// Clients that are killed or stopped in the middle of puts and gets, under load, over each data
// plane: what they held comes back, nothing half-done is seen, and others do not notice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "proto/convert.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/support/from_environment.h"
#include "tests/support/sanitizer.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

int Rounds(int cheap) { return FromEnvironment("CAIRN_KILL_ROUNDS", cheap); }

class KillTest : public ::testing::TestWithParam<Wire> {
 protected:
  void SetUp() override {
    std::vector<std::string> flags = WireFlags(GetParam());
    flags.emplace_back("--host-bytes=256MiB");
    auto daemon = DaemonProcess::Start(flags);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    auto client = RawClient::Open(daemon_->endpoint("control"));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto space = client_->OpenSpace(ToySpec("test", shape_));
    ASSERT_TRUE(space.ok());
    space_ = *space;
    auto connection = client_->DialOver(GetParam(), client_->ticket(), uint64_t{32} << 20);
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *std::move(connection);
    for (uint64_t i = 0; i < kWorkerContents; ++i) {
      contents_.push_back(ToySource(i, shape_.whole(), shape_));
      ASSERT_TRUE(PutKept(i).ok());
    }
    target_.resize(contents_[0].size());
    bytes_per_image_ = daemon_->Metric("cairn_tier_used_bytes") / kWorkerContents;
  }

  absl::Status PutKept(uint64_t i) {
    return AskOk(*connection_,
                 client_->PutFrame(space_, ToyKey(i), shape_.whole(), contents_[i], shape_),
                 contents_[i])
        .status();
  }

  // NotFound, or OK with the right bytes; whatever else is noted.
  absl::Status GetAndCompare(uint64_t block) {
    const absl::Status status =
        AskOk(*connection_,
              client_->GetFrame(space_, ToyKey(block), shape_.whole(), target_.size()), {}, target_)
            .status();
    if (!status.ok() && !absl::IsNotFound(status)) errors_.push_back(status.ToString());
    // Without optimization, != compares byte by byte.
    const std::vector<std::byte>& content = contents_[block % kWorkerContents];
    if (status.ok() && (target_.size() != content.size() ||
                        std::memcmp(target_.data(), content.data(), content.size()) != 0)) {
      errors_.push_back(absl::StrCat("wrong bytes in block ", block));
    }
    return status;
  }

  // One round of an honest client: everything it put is there, or was evicted and is put again.
  void Work() {
    for (uint64_t i = 0; i < kWorkerContents; ++i) {
      if (absl::IsNotFound(GetAndCompare(i))) {
        const absl::Status put = PutKept(i);
        if (!put.ok() && !absl::IsResourceExhausted(put)) errors_.push_back(put.ToString());
      }
    }
  }

  std::unique_ptr<ChildProcess> StartWorker(const std::string& mode, int seed) {
    auto worker = ChildProcess::Start(
        CAIRN_TEST_WORKER,
        {daemon_->endpoint("control"), mode, WireName(GetParam()), absl::StrCat(seed)});
    EXPECT_TRUE(worker.ok());
    return *std::move(worker);
  }
  static void AwaitWorking(ChildProcess& worker) {
    const auto line = worker.ReadLine(absl::Seconds(30));
    EXPECT_TRUE(line.ok()) << line.status();
  }

  // The blocks that putters of these seeds have put and that were not evicted.
  std::vector<uint64_t> LeftOf(const std::vector<int>& seeds) {
    constexpr uint64_t kPutsMax = 20'000;  // more than one does in a round
    std::vector<uint64_t> left;
    for (const int seed : seeds) {
      std::vector<proto::BlockKey> keys;
      for (uint64_t n = 0; n < kPutsMax; ++n) {
        keys.push_back(ToyKey(WorkerBlock(static_cast<uint64_t>(seed), n)));
      }
      const auto is_there = client_->Contains(space_, keys);
      EXPECT_TRUE(is_there.ok()) << is_there.status();
      if (!is_there.ok()) continue;
      for (uint64_t n = 0; n < kPutsMax; ++n) {
        if ((*is_there)[n]) left.push_back(WorkerBlock(static_cast<uint64_t>(seed), n));
      }
    }
    return left;
  }

  // Nothing is held but by the honest client, and the bytes used are the bytes published. One
  // scrape is no snapshot, hence the patience.
  bool IsSettled(const Scrape& scrape) const {
    const auto sum = [&scrape](const std::string& prefix) {
      double total = 0;
      for (const auto& [series, value] : scrape) {
        if (series.starts_with(prefix)) total += value;
      }
      return total;
    };
    return sum("cairn_sessions") - sum("cairn_sessions_") == 1 && sum("cairn_data_peers{") == 1 &&
           sum("cairn_data_requests_in_flight{") == 0 &&
           sum("cairn_leases") - sum("cairn_leases_") == 0 &&
           sum("cairn_staging_used_bytes") == 0 && sum("cairn_tier_pinned_bytes") == 0 &&
           sum("cairn_quarantine_bytes") == 0 && sum("cairn_transport_quarantine_bytes") == 0 &&
           sum("cairn_transport_arrivals{") == 0 &&
           sum("cairn_tier_used_bytes") == scrape.at("cairn_images") * bytes_per_image_;
  }
  void ExpectSettled(absl::Duration within) {
    Scrape scrape;
    std::string text;
    const auto is_settled = [&] { return IsSettled(scrape = daemon_->Metrics()); };
    if (!WaitFor(is_settled, within, absl::Milliseconds(20))) {
      for (const auto& [series, value] : scrape) absl::StrAppend(&text, series, " ", value, "\n");
    }
    EXPECT_EQ(text, "") << "something is still held: "
                        << scrape.at("cairn_images") * bytes_per_image_ << " bytes are published";
  }

  const ToyShape shape_ = BigToy();
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> client_;
  std::unique_ptr<transport::Connection> connection_;
  uint64_t space_ = 0;
  double bytes_per_image_ = 0;
  std::vector<std::vector<std::byte>> contents_;
  std::vector<std::byte> target_;
  std::vector<std::string> errors_;
};

INSTANTIATE_TEST_SUITE_P(Each, KillTest, ::testing::ValuesIn(kWires),
                         [](const auto& info) { return WireName(info.param); });

TEST_P(KillTest, WhatKilledClientsHeldComesBack) {
  const int rounds = Rounds(GetParam() == Wire::kLocal ? 5 : 3);
  const auto aborted = [&] { return daemon_->Metric("cairn_puts_total{outcome=\"aborted\""); };
  // On a busy machine it can take more rounds until a kill meets a put.
  for (int round = 0; round < rounds || (aborted() == 0 && round < 10 * rounds); ++round) {
    std::vector<std::unique_ptr<ChildProcess>> workers;
    const std::vector<int> putters = {3 * round + 10, 3 * round + 11, 3 * round + 12};
    for (const int seed : putters) workers.push_back(StartWorker("put", seed));
    // What is lent keeps no lane busy, so that puts are over sooner and a kill meets fewer.
    workers.push_back(StartWorker("get", round));
    for (const auto& worker : workers) AwaitWorking(*worker);
    std::atomic<bool> is_over{false};
    std::thread honest([&] {
      while (!is_over) Work();
    });
    for (size_t i = 0; i < workers.size(); ++i) {  // one dies while the others go on
      absl::SleepFor(absl::Milliseconds(20 + (37 * round + 13 * static_cast<int>(i)) % 50));
      EXPECT_TRUE(workers[i]->is_running()) << "it ended by itself";
      workers[i]->Signal(SIGKILL);
    }
    absl::SleepFor(absl::Milliseconds(20));
    is_over = true;
    honest.join();
    ExpectSettled(absl::Seconds(10));
    // What the dead have put is whole or not there.
    size_t whole = 0;  // upkeep may still evict some
    for (const uint64_t block : LeftOf(putters)) {
      whole += GetAndCompare(block).ok() ? 1 : 0;
    }
    EXPECT_GT(whole, 0u) << round;
    if (HasFailure()) break;
  }
  EXPECT_THAT(errors_, ::testing::IsEmpty());
  EXPECT_GT(aborted(), 0) << "none died in mid-put";
  EXPECT_EQ(daemon_->Metric("cairn_corrupt_tiles_total"), 0);
  EXPECT_EQ(daemon_->Metric("cairn_transport_stuck_transfers_total"), 0);
  EXPECT_TRUE(daemon_->process().is_running());
}

// The memory of a daemon that died lives on in a client that is stopped. Another daemon starts all
// the same, and the client finds out when it goes on, and not by a signal.
TEST_P(KillTest, AStoppedClientOfADeadDaemonKeepsNobodyOut) {
  if (GetParam() != Wire::kLocal) GTEST_SKIP() << "nothing is mapped over a network";
  const auto worker = StartWorker("get", 1);
  AwaitWorking(*worker);
  EXPECT_GT(daemon_->Metric("cairn_transport_loans_total"), 0);
  worker->Signal(SIGSTOP);
  daemon_->process().Signal(SIGKILL);
  EXPECT_TRUE(daemon_->process().Wait(absl::Seconds(10)).ok());
  std::ifstream maps(absl::StrCat("/proc/", worker->pid(), "/maps"));
  const std::string mapped((std::istreambuf_iterator<char>(maps)), {});
  EXPECT_THAT(mapped, ::testing::HasSubstr("memfd:cairn-arena"));
  const auto next = DaemonProcess::Start({"--host-bytes=256MiB"});
  ASSERT_TRUE(next.ok()) << next.status();
  worker->Signal(SIGCONT);
  EXPECT_EQ(worker->Wait(absl::Seconds(20)).value_or(-1), 1) << "it sees that the daemon is gone";
}

// A client that stops without dying: its connection stays open, its frames stay unanswered for.
TEST_P(KillTest, AStoppedClientDoesNotHoldUpOthers) {
  const auto getter = StartWorker("get", 0), putter = StartWorker("put", 9);
  for (ChildProcess* worker : {getter.get(), putter.get()}) {
    AwaitWorking(*worker);
    worker->Signal(SIGSTOP);
  }
  const absl::Time began = MonotonicNow();
  for (int i = 0; i < 10; ++i) Work();
  EXPECT_LT(MonotonicNow() - began, absl::Seconds(10) * kSlowdown);
  EXPECT_THAT(errors_, ::testing::IsEmpty());
  getter->Signal(SIGKILL);
  putter->Signal(SIGKILL);
  ExpectSettled(absl::Seconds(10));
}

}  // namespace
}  // namespace cairn
