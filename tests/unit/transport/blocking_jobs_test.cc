// SPDX-License-Identifier: Apache-2.0
#include "transport/local/blocking_jobs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "tests/support/wait.h"

namespace cairn::transport {
namespace {

constexpr uint64_t kHeldUp = 1, kOther = 2;

// What holds jobs up until it opens. Shared, since jobs outlive the test that made them.
struct Gate {
  Mutex mutex;
  CondVar opens;
  bool is_open ABSL_GUARDED_BY(mutex) = false;
  std::atomic<int> begun{0}, ended{0};

  void Pass() {
    begun.fetch_add(1);
    const MutexLock lock(mutex);
    while (!is_open) opens.WaitUntil(mutex, absl::InfiniteFuture());
    ended.fetch_add(1);
  }
  void Open() {
    const MutexLock lock(mutex);
    is_open = true;
    opens.NotifyAll();
  }
};

TEST(BlockingJobs, AJobRuns) {
  BlockingJobs jobs;
  std::atomic<bool> has_run{false};
  jobs.Run(kOther, [&] { has_run.store(true); });
  EXPECT_TRUE(WaitFor([&] { return has_run.load() && jobs.count(kOther) == 0; }));
}

TEST(BlockingJobs, APartyThatHoldsThemUpHasHalfOfTheThreads) {
  const auto gate = std::make_shared<Gate>();
  BlockingJobs jobs;
  constexpr int kJobs = 20;
  for (int i = 0; i < kJobs; ++i) jobs.Run(kHeldUp, [gate] { gate->Pass(); });
  EXPECT_TRUE(WaitFor([&] { return gate->begun.load() == BlockingJobs::kThreadsPerParty; }));
  EXPECT_EQ(jobs.count(kHeldUp), kJobs);
  for (int i = 0; i < kJobs; ++i) {
    std::atomic<bool> has_run{false};
    jobs.Run(kOther, [&] { has_run.store(true); });
    ASSERT_TRUE(WaitFor([&] { return has_run.load() && jobs.count(kOther) == 0; }));
  }
  EXPECT_EQ(gate->begun.load(), BlockingJobs::kThreadsPerParty);
  gate->Open();
  EXPECT_TRUE(WaitFor([&] { return gate->ended.load() == kJobs && jobs.count(kHeldUp) == 0; }));
}

TEST(BlockingJobs, NobodyWaitsForAJobThatIsHeldUp) {
  const auto gate = std::make_shared<Gate>();
  constexpr int kJobs = 10;
  {
    BlockingJobs jobs;
    for (int i = 0; i < kJobs; ++i) jobs.Run(kHeldUp, [gate] { gate->Pass(); });
    EXPECT_TRUE(WaitFor([&] { return gate->begun.load() == BlockingJobs::kThreadsPerParty; }));
    const absl::Time begun = MonotonicNow();
    jobs.Stop(absl::Milliseconds(20));
    EXPECT_LT(MonotonicNow() - begun, absl::Seconds(5));
    EXPECT_EQ(gate->ended.load(), 0);
  }
  gate->Open();  // they go on by themselves, with those behind them
  EXPECT_TRUE(WaitFor([&] { return gate->ended.load() == kJobs; }));
}

TEST(BlockingJobs, WhatWaitsIsRunBeforeItStops) {
  std::atomic<int> run{0};
  BlockingJobs jobs;
  for (int i = 0; i < 1000; ++i) jobs.Run(static_cast<uint64_t>(i % 3), [&] { run.fetch_add(1); });
  jobs.Stop(absl::Seconds(30));
  EXPECT_EQ(run.load(), 1000);
}

}  // namespace
}  // namespace cairn::transport
