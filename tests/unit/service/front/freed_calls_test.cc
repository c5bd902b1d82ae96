// SPDX-License-Identifier: Apache-2.0
#include "service/front/freed_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "tests/support/memory_tier.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

class FreedCallsTest : public testing::Test {
 protected:
  explicit FreedCallsTest(bool is_lasting = true) {
    auto host =
        HostTier::Make({.capacity_bytes = 16_MiB, .staging_bytes = 1_MiB, .fault_in = false});
    CAIRN_CHECK_OK(host);
    std::vector<std::unique_ptr<CopyTier>> others;
    const TierTraits traits = {.id = TierId::kSsd, .may_hold_last = true, .is_lasting = is_lasting};
    others.push_back(std::make_unique<MemoryTier>(traits, 1_MiB, std::make_shared<MemoryDisk>()));
    tier_ = static_cast<MemoryTier*>(others[0].get());
    tiers_.emplace(*std::move(host), std::move(others));
    calls_.emplace(*tiers_);
  }
  void Await(absl::Duration patience, std::optional<absl::Status>* answer) {
    calls_->Await(MonotonicNow() + patience, [this, answer](const absl::Status& status) {
      const MutexLock lock(mutex_);
      *answer = status;
    });
  }
  bool IsOver(const std::optional<absl::Status>& answer) {
    const MutexLock lock(mutex_);
    return answer.has_value();
  }

  Mutex mutex_;
  MemoryTier* tier_ = nullptr;
  std::optional<Tiers> tiers_;
  std::optional<FreedCalls> calls_;
};

class WithoutALastingTier : public FreedCallsTest {
 protected:
  WithoutALastingTier() : FreedCallsTest(/*is_lasting=*/false) {}
};

TEST_F(WithoutALastingTier, TheAnswerComesInTheCall) {
  tier_->SetFreed(MemoryTier::Freed::kLate);
  std::optional<absl::Status> answer;
  Await(absl::Seconds(60), &answer);
  EXPECT_EQ(answer, absl::OkStatus());
}

TEST_F(FreedCallsTest, TheAnswerComesOnceTheTierHasForgotten) {
  tier_->SetFreed(MemoryTier::Freed::kLate);
  std::optional<absl::Status> first, second;
  Await(absl::Seconds(60), &first);
  Await(absl::Seconds(60), &second);
  EXPECT_FALSE(IsOver(first) || IsOver(second));
  tier_->SetFreed(MemoryTier::Freed::kGone);
  ASSERT_TRUE(WaitFor([&] { return IsOver(first) && IsOver(second); }));
  EXPECT_EQ(first, absl::OkStatus());
  EXPECT_EQ(second, absl::OkStatus());
}

TEST_F(FreedCallsTest, WhoseDeadlineComesFirstIsToldSoAndNobodyElse) {
  tier_->SetFreed(MemoryTier::Freed::kLate);
  std::optional<absl::Status> hasty, patient;
  Await(absl::Seconds(60), &patient);
  Await(absl::Milliseconds(20), &hasty);
  ASSERT_TRUE(WaitFor([&] { return IsOver(hasty); }));
  EXPECT_EQ(hasty->code(), absl::StatusCode::kDeadlineExceeded) << *hasty;
  EXPECT_FALSE(IsOver(patient));
  tier_->SetFreed(MemoryTier::Freed::kGone);
  ASSERT_TRUE(WaitFor([&] { return IsOver(patient); }));
  EXPECT_EQ(patient, absl::OkStatus());
}

TEST_F(FreedCallsTest, ADeviceThatIsOutPromisesNothing) {
  tier_->SetFreed(MemoryTier::Freed::kOut);
  std::optional<absl::Status> answer;
  Await(absl::Seconds(60), &answer);
  ASSERT_TRUE(WaitFor([&] { return IsOver(answer); }));
  EXPECT_EQ(answer->code(), absl::StatusCode::kUnavailable) << *answer;
}

TEST_F(FreedCallsTest, StopAnswersAllAndThoseToCome) {
  tier_->SetFreed(MemoryTier::Freed::kLate);
  std::optional<absl::Status> before, after;
  Await(absl::Seconds(60), &before);
  calls_->Stop();
  Await(absl::Seconds(60), &after);
  ASSERT_TRUE(before.has_value() && after.has_value());
  EXPECT_EQ(before->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(after->code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace cairn
