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

namespace cairn {
namespace {

// docs/operations.md: a half-dead client is noticed within 15 s. With room for a slow machine.
constexpr absl::Duration kNoticedWithin = absl::Seconds(25);
constexpr absl::Duration kOthersWaitMax = absl::Seconds(3);

TEST(HalfDeadTest, TheirSessionsEndInBoundedTime) {
  std::vector<std::string> flags = WireFlags(kWires[std::size(kWires) - 1]);
  flags.emplace_back("--host-bytes=256MiB");
  auto started = DaemonProcess::Start(flags);
  ASSERT_TRUE(started.ok()) << started.status();
  DaemonProcess& daemon = **started;
  const ToyShape shape = BigToy();
  auto honest = RawClient::Open(daemon.endpoint("control"));
  ASSERT_TRUE(honest.ok()) << honest.status();
  const auto space = (*honest)->OpenSpace(ToySpec("test", shape));
  const auto connection = (*honest)->Dial(uint64_t{32} << 20);
  ASSERT_TRUE(space.ok() && connection.ok());
  std::vector<std::vector<std::byte>> contents;
  std::vector<proto::BlockKey> keys;
  for (uint64_t i = 0; i < kWorkerContents; ++i) {
    contents.push_back(ToySource(i, shape.whole(), shape));
    keys.push_back(ToyKey(i));
    const auto frame = (*honest)->PutFrame(*space, keys[i], shape.whole(), contents[i], shape);
    ASSERT_TRUE(AskOk(**connection, frame, contents[i]).ok());
  }
  // One stopped getter (which holds a lease) and one stopped putter over each data plane.
  std::vector<std::unique_ptr<ChildProcess>> stopped;
  for (const Wire wire : kWires) {
    for (const char* mode : {"get", "put"}) {
      auto worker = ChildProcess::Start(
          CAIRN_TEST_WORKER,
          {daemon.endpoint("control"), mode, WireName(wire), absl::StrCat(stopped.size() + 1)});
      ASSERT_TRUE(worker.ok());
      stopped.push_back(*std::move(worker));
    }
  }
  for (const auto& worker : stopped) ASSERT_TRUE(worker->ReadLine(absl::Seconds(30)).ok());
  // One behind a silent network, with a lease.
  TcpProxy proxy(daemon.port("control"));
  auto cut_off = RawClient::Open(absl::StrCat("127.0.0.1:", proxy.port()));
  ASSERT_TRUE(cut_off.ok()) << cut_off.status();
  ASSERT_TRUE((*cut_off)->OpenSpace(ToySpec("test", shape)).ok());
  auto match = (*cut_off)->MatchOf(*space, keys);
  match.set_lease(true);
  ASSERT_EQ((*cut_off)->Match(match)->block_count(), kWorkerContents);

  EXPECT_EQ(daemon.Metric("cairn_sessions"), 2.0 + static_cast<double>(stopped.size()));
  EXPECT_EQ(daemon.Metric("cairn_leases"), 1.0 + std::size(kWires));
  for (const auto& worker : stopped) worker->Signal(SIGSTOP);
  proxy.Stall();
  const absl::Time began = MonotonicNow();
  absl::Duration longest;
  std::vector<std::byte> target(contents[0].size());
  for (uint64_t i = 0; daemon.Metric("cairn_sessions") > 1; ++i) {
    ASSERT_LT(MonotonicNow() - began, kNoticedWithin) << daemon.ReadLog();
    const absl::Time asked = MonotonicNow();
    const uint64_t block = i % kWorkerContents;
    const auto got =
        AskOk(**connection, (*honest)->GetFrame(*space, keys[block], shape.whole(), target.size()),
              {}, target);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(target == contents[block]) << "wrong bytes";
    longest = std::max(longest, MonotonicNow() - asked);
    absl::SleepFor(absl::Milliseconds(100));
  }
  EXPECT_LT(longest, kOthersWaitMax) << "others had to wait";
  EXPECT_GT(MonotonicNow() - began, absl::Seconds(4)) << "the stopped were not given time";
  for (const char* held : {"cairn_leases", "cairn_staging_used_bytes", "cairn_tier_pinned_bytes",
                           "cairn_quarantine_bytes", "cairn_transport_quarantine_bytes",
                           "cairn_transport_arrivals", "cairn_data_requests_in_flight"}) {
    EXPECT_TRUE(daemon.AwaitMetric(held, 0, absl::Seconds(5))) << held << daemon.Metric(held);
  }
  EXPECT_TRUE(daemon.AwaitMetric("cairn_data_peers", 1, absl::Seconds(5)));
  // Who wakes up finds its session ended, and ends.
  for (const auto& worker : stopped) worker->Signal(SIGCONT);
  for (const auto& worker : stopped) EXPECT_EQ(worker->Wait(absl::Seconds(20)).value_or(-1), 1);
  EXPECT_TRUE(daemon.process().is_running());
}

}  // namespace
}  // namespace cairn
