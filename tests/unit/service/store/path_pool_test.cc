// SPDX-License-Identifier: Apache-2.0
// Whose turn it is on the path pool.
#include "service/path_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/support/metric_capture.h"
#include "tests/support/random.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using Kind = PathPool::Kind;

// A pool of one thread, which does not begin before Release().
class PathPoolTest : public testing::Test {
 protected:
  void Make(size_t gets_max, size_t puts_max) {
    pool_ = std::make_unique<PathPool>(1, gets_max, puts_max);
    pool_->Submit(
        [this](const absl::Status& refusal) {
          ASSERT_TRUE(refusal.ok()) << refusal;
          is_held_ = true;
          released_.WaitForNotification();
        },
        Kind::kGet);
    ASSERT_TRUE(WaitFor([this] { return is_held_.load(); }));
  }
  ~PathPoolTest() override { RunAll(); }
  void RunAll() {
    if (pool_ != nullptr && !released_.HasBeenNotified()) {
      released_.Notify();
      pool_->Stop();
    }
  }
  // Notes the number on the pool's thread, or the reason why it is refused at once.
  PathPool::Job Note(int number) {
    return [this, number](const absl::Status& refusal) {
      if (refusal.ok()) {
        ran_.push_back(number);
      } else {
        refusal_ = refusal;
      }
    };
  }
  absl::Status Submit(int number, Kind kind) {
    refusal_ = absl::OkStatus();
    pool_->Submit(Note(number), kind);
    return refusal_;
  }
  absl::Status Continue(int number, Kind kind) {
    refusal_ = absl::OkStatus();
    pool_->Continue(Note(number), kind);
    return refusal_;
  }

  std::unique_ptr<PathPool> pool_;
  std::atomic<bool> is_held_{false};
  absl::Notification released_;
  std::vector<int> ran_;  // of the pool's thread until RunAll()
  absl::Status refusal_;  // of the test's thread
};

TEST_F(PathPoolTest, RunsWhatItTookAndRefusesTheRest) {
  Make(/*gets_max=*/3, /*puts_max=*/4);
  int accepted = 0;
  for (const auto& [kind, count_max] : {std::pair(Kind::kGet, 3), std::pair(Kind::kPut, 4)}) {
    for (int i = 0; i < 10; ++i) {
      const absl::Status status = Submit(accepted, kind);
      EXPECT_EQ(status.code(),
                i < count_max ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
      accepted += status.ok() ? 1 : 0;
    }
  }
  // A continuation has always room.
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Continue(accepted, Kind::kGet).ok());
    ++accepted;
  }
  EXPECT_EQ(Submit(accepted, Kind::kGet).message(), "path pool: 3 jobs are waiting");
  EXPECT_EQ(Submit(accepted, Kind::kPut).message(), "path pool: 4 jobs are waiting");
  PathPool& pool = *pool_;
  RunAll();
  EXPECT_EQ(ran_.size(), static_cast<size_t>(accepted));
  EXPECT_TRUE(absl::IsUnavailable(Submit(accepted, Kind::kGet)));
  EXPECT_TRUE(absl::IsUnavailable(Continue(accepted, Kind::kPut)));
  auto owned = std::make_unique<int>(7);
  pool.Submit(
      [&, owned = std::move(owned)](const absl::Status& refusal) {
        EXPECT_TRUE(absl::IsUnavailable(refusal));
        EXPECT_EQ(*owned, 7) << "it answers with what it holds";
        refusal_ = absl::OkStatus();
      },
      Kind::kGet);
  EXPECT_TRUE(refusal_.ok()) << "the job has run";
  MetricCapture metrics;
  pool.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_path_jobs_total"), accepted + 1);
  EXPECT_EQ(metrics.Value("cairn_path_jobs_waiting"), 0);
  EXPECT_EQ(pool.queue_seconds(Kind::kGet).Snapshot().count, 3u + 1000 + 1);
  EXPECT_EQ(pool.queue_seconds(Kind::kPut).Snapshot().count, 4u);
}

TEST_F(PathPoolTest, AGetBehindEncodesIsNext) {
  Make(limits::kPathGetsMax, limits::kPathPutsMax);
  for (int put = 0; put < 64; ++put) {
    ASSERT_TRUE(Submit(put, Kind::kPut).ok());
  }
  ASSERT_TRUE(Submit(100, Kind::kGet).ok());
  ASSERT_TRUE(Continue(101, Kind::kGet).ok());
  ASSERT_TRUE(Continue(102, Kind::kPut).ok()) << "it has been encoded";
  RunAll();
  ASSERT_EQ(ran_.size(), 67u);
  EXPECT_EQ(ran_[0], 100);
  EXPECT_EQ(ran_[1], 101);
  EXPECT_EQ(ran_[2], 102);
  EXPECT_TRUE(std::is_sorted(ran_.begin() + 3, ran_.end()));
}

// Gets go first, but for one put after every kGetsPerPut of them, and what is of one kind keeps its
// order, whatever comes when.
TEST_F(PathPoolTest, NobodyStarves) {
  constexpr int kJobs = 20'000;
  std::mt19937_64 random = SeededRandom();
  Make(limits::kPathGetsMax, limits::kPathGetsMax);
  std::deque<int> waiting[2];  // as it should be, by kind
  size_t gets_in_a_row = 0;
  int added = 0, ran = 0;
  absl::Notification all_ran;
  std::function<void()> add;
  const auto run = [&](Kind kind, int number) {
    std::deque<int>& own = waiting[static_cast<size_t>(kind)];
    ASSERT_FALSE(own.empty());
    EXPECT_EQ(own.front(), number);
    own.pop_front();
    if (kind == Kind::kPut) {
      EXPECT_TRUE(waiting[0].empty() || gets_in_a_row == limits::kGetsPerPut);
    }
    gets_in_a_row = kind == Kind::kPut || waiting[1].empty() ? 0 : gets_in_a_row + 1;
    EXPECT_LE(gets_in_a_row, limits::kGetsPerPut);
    for (uint64_t more = 1 + random() % 2; more > 0; --more) {
      add();  // so that the pool never catches up
    }
    if (++ran == kJobs) {
      all_ran.Notify();
    }
  };
  add = [&] {
    const Kind kind = random() % 4 == 0 ? Kind::kPut : Kind::kGet;
    if (added < kJobs && waiting[0].size() + waiting[1].size() < limits::kPathGetsMax) {
      waiting[static_cast<size_t>(kind)].push_back(added);
      const int number = added++;
      pool_->Submit(
          [&run, kind, number](const absl::Status& refusal) {
            ASSERT_TRUE(refusal.ok()) << refusal;
            run(kind, number);
          },
          kind);
    }
  };
  for (int i = 0; i < 100; ++i) {
    add();
  }
  released_.Notify();
  ASSERT_TRUE(all_ran.WaitForNotificationWithTimeout(absl::Seconds(60)));
  pool_->Stop();
}

}  // namespace
}  // namespace cairn
