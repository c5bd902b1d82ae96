// SPDX-License-Identifier: Apache-2.0
// The drives of a daemon fail while a trace is replayed against it: clients see hits and misses, no
// call ends much after its deadline, and once the fault is over the tier is whole again without a
// restart. CAIRN_STALL_SECONDS=N sets how long a fault lasts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/e2e/client/replay_fixture.h"
#include "tests/support/faulty_calls.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

constexpr absl::Duration kLateMax = absl::Milliseconds(50);
constexpr absl::Duration kDeadline = absl::Milliseconds(500);
constexpr absl::Duration kHealthy = absl::Milliseconds(500);  // before and after the fault
constexpr absl::Duration kMetWithin = absl::Seconds(30);
constexpr uint64_t kStepMs = 10;  // between requests
// Twice what memory has room for.
constexpr uint64_t kSessions = 50, kSessionBlocks = 10, kNewBlocks = 4;

// A request asks for a session that was played before and for blocks that nobody has: gets from
// both tiers, and puts. Without `turns` the sessions alone.
std::string TraceOfTurns(uint64_t turns, uint64_t step_ms) {
  std::mt19937_64 random = SeededRandom();
  std::vector<Asked> asked;
  for (uint64_t turn = 0; turn < std::max(turns, kSessions); ++turn) {
    const uint64_t session = turns == 0 ? turn : random() % kSessions;
    Asked one;
    for (uint64_t i = 0; i < kSessionBlocks; ++i) {
      one.ids.push_back(session * kSessionBlocks + i);
    }
    for (uint64_t i = 0; turns > 0 && i < kNewBlocks; ++i) {
      one.ids.push_back(1'000'000 + turn * kNewBlocks + i);
    }
    one.tokens = one.ids.size() * kTraceTokens;
    asked.push_back(one);
  }
  return TraceOf(asked, step_ms);
}

// How long a fault lasts, at least.
absl::Duration FaultTime() {
  const char* given = std::getenv("CAIRN_STALL_SECONDS");
  return absl::Seconds(given == nullptr ? 1 : std::atoi(given));
}

// How long the machine lets a thread wait that does nothing but sleep: what no call can be blamed
// for. Threads that work wait longer than it.
class IdleProbe {
 public:
  IdleProbe() : thread_([this] { Run(); }) {}
  ~IdleProbe() { Stop(); }

  absl::Duration Stop() {
    is_over_ = true;
    if (thread_.joinable()) {
      thread_.join();
    }
    return longest_;
  }

 private:
  void Run() {
    constexpr absl::Duration kPause = absl::Milliseconds(1);
    while (!is_over_) {  // ends: with Stop()
      const absl::Time before = MonotonicNow();
      absl::SleepFor(kPause);
      longest_ = std::max(longest_, MonotonicNow() - before - kPause);
    }
  }

  std::atomic<bool> is_over_{false};
  absl::Duration longest_;  // of the thread, until it ends
  std::thread thread_;
};

struct Case {
  const char* name;
  std::vector<FaultyCalls::Call> calls;
  int error;
  const char* path;  // of the files, below a device's folder
  bool is_long = false;
};
void PrintTo(const Case& tested, std::ostream* stream) { *stream << tested.name; }

class ReplayFaults : public testing::TestWithParam<Case> {
 protected:
  ReplayFaults() {
    FaultyCalls::Share(faults_);
    ::setenv(FaultyCalls::kFileVariable, faults_.c_str(), 1);
    ::setenv("LD_PRELOAD", CAIRN_FAULTY_CALLS, 1);
    auto started = DaemonProcess::Start({"--ssd=" + disk_.File("device0") + "=256MiB",
                                         "--ssd=" + disk_.File("device1") + "=256MiB",
                                         "--ssd-io=threads", "--host-bytes=16MiB"});
    ::unsetenv("LD_PRELOAD");
    ::unsetenv(FaultyCalls::kFileVariable);
    EXPECT_TRUE(started.ok()) << started.status();
    daemon_ = started.ok() ? *std::move(started) : nullptr;
  }
  ~ReplayFaults() override { FaultyCalls::Clear(); }

  void Inject() const {
    for (const char* device : {"/device0", "/device1"}) {
      for (const FaultyCalls::Call call : GetParam().calls) {
        FaultyCalls::Inject({.call = call,
                             .path = absl::StrCat(disk_.path().string(), device, GetParam().path),
                             .error = GetParam().error});
      }
    }
  }
  static std::string Flags() {
    return absl::StrCat("--recipe raw --space-name faults --deadline-ms ",
                        absl::ToInt64Milliseconds(kDeadline));
  }
  // All that is played has been written down when it ends.
  Played PlaySessions() const {
    const Played played = PlayTrace(*daemon_, folder_.File("sessions"), TraceOfTurns(0, 0),
                                    Flags() + " --parallel 2 --deadline-ms 20000");
    EXPECT_TRUE(daemon_->AwaitMetric("cairn_images_uncopied", 0, absl::Seconds(60)));
    return played;
  }
  bool AreDevicesOk() const {
    return daemon_->Metric("cairn_ssd_state{device=\"0\",state=\"ok\"") == 1 &&
           daemon_->Metric("cairn_ssd_state{device=\"1\",state=\"ok\"") == 1;
  }
  // Each is a miss to an engine.
  static void ExpectMissesAlone(const Played& played) {
    EXPECT_EQ(played.code, 0) << played.output;
    EXPECT_EQ(played.Figure("wrong_bytes"), 0);
    for (const auto& [name, count] : played.figures.fields().at("errors").struct_value().fields()) {
      EXPECT_THAT(name, testing::AnyOf("get NOT_FOUND", "get DEADLINE_EXCEEDED"))
          << count.number_value();
    }
  }
  static void Print(const Played& played, absl::Duration stall) {
    std::cout << GetParam().name << ": " << played.Figure("requests") << " requests, "
              << played.Figure("hits.all.blocks") << " hits of " << played.Figure("blocks")
              << " blocks, " << played.Figure("lost_blocks") << " lost; ";
    for (const std::string call : {"match", "get", "put"}) {
      std::cout << call << " p50 " << played.Figure("calls." + call + ".p50_us") << " us, p99 "
                << played.Figure("calls." + call + ".p99_us") << " us, max "
                << played.Figure("calls." + call + ".max_us") << " us; ";
    }
    std::cout << played.Figure("late_calls") << " late, by " << played.Figure("late_max_us")
              << " us at most; an idle thread waited " << absl::ToInt64Microseconds(stall)
              << " us at most\n";
  }

  const TempDir disk_{std::filesystem::path(CAIRN_TEST_DISK)};
  const TempDir folder_;
  const std::string faults_ = folder_.File("faults");
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_P(ReplayFaults, AreHitsAndMissesInTimeAndPass) {
  if (GetParam().is_long && std::getenv("CAIRN_STALL_SECONDS") == nullptr) {
    GTEST_SKIP() << "a device that could not grow tries again after half a minute: in the soak";
  }
  ASSERT_NE(daemon_, nullptr);
  ExpectMissesAlone(PlaySessions());
  // It is ended when the fault is over.
  const absl::Duration longest = FaultTime() + 2 * kHealthy + kMetWithin;
  std::ofstream(folder_.File("trace"))
      << TraceOfTurns(static_cast<uint64_t>(longest / absl::Milliseconds(kStepMs)), kStepMs);
  IdleProbe probe;
  auto player = ChildProcess::Start(
      "/bin/sh", {"-c", absl::StrCat("exec ", CAIRNCTL_PATH, " replay ", folder_.File("trace"),
                                     " --json --rate 1 --parallel 8 ", Flags(), " --control ",
                                     daemon_->endpoint("control"))});
  ASSERT_TRUE(player.ok()) << player.status();
  absl::SleepFor(kHealthy);
  Inject();
  absl::SleepFor(FaultTime());
  EXPECT_TRUE(WaitFor([] { return FaultyCalls::met() > 0; }, kMetWithin));
  const bool was_ok = AreDevicesOk();
  const uint64_t met = FaultyCalls::met();
  FaultyCalls::Clear();
  absl::SleepFor(kHealthy);
  (*player)->Signal(SIGINT);
  std::string output;
  for (auto line = (*player)->ReadLine(absl::Seconds(20)); line.ok();
       line = (*player)->ReadLine(absl::Seconds(20))) {
    absl::StrAppend(&output, *line, "\n");
  }
  const absl::Duration stall = probe.Stop();
  const Played played = PlayedOf((*player)->Wait(absl::Seconds(20)).value_or(-1), output);
  Print(played, stall);
  std::cout << met << " calls met the fault; the devices were " << (was_ok ? "" : "not ") << "ok\n";
  ExpectMissesAlone(played);
  EXPECT_LE(absl::Microseconds(played.Figure("late_max_us")), kLateMax + stall);

  // What was missing is put, and stays once it is written down, which rests for a while longer.
  const absl::Time over = MonotonicNow();
  Played after;
  EXPECT_TRUE(WaitFor([&] { return AreDevicesOk(); }, absl::Seconds(60)))
      << daemon_->HttpGet("/readyz");
  EXPECT_TRUE(WaitFor(
      [&] {
        ExpectMissesAlone(after = PlaySessions());
        return after.Figure("hits.all.blocks") == kSessions * kSessionBlocks;
      },
      absl::Seconds(60), absl::Milliseconds(500)))
      << after.output;
  EXPECT_GT(after.Figure("hits.ssd.blocks"), 0) << after.output;
  std::cout << "whole again after " << absl::FormatDuration(MonotonicNow() - over) << "\n";
}

INSTANTIATE_TEST_SUITE_P(
    Each, ReplayFaults,
    testing::Values(
        Case{"DiskFull", {FaultyCalls::kWrite, FaultyCalls::kAllocate}, ENOSPC, "", true},
        Case{"ReadsFail", {FaultyCalls::kRead}, EIO, "/segments"},
        Case{"WritesFail", {FaultyCalls::kWrite}, EIO, ""},
        Case{"SyncsFail", {FaultyCalls::kSync}, EIO, "", true},
        Case{"OpensFail", {FaultyCalls::kOpen, FaultyCalls::kAllocate}, EIO, "", true},
        Case{"Stall",
             {FaultyCalls::kRead, FaultyCalls::kWrite, FaultyCalls::kSync},
             FaultyCalls::kHang,
             ""}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cairn
