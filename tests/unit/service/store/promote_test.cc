// SPDX-License-Identifier: Apache-2.0
// Gets of images that have to be read through their tier: late, never, out of order, with an error,
// with wrong bytes, and always on another thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/support/log_capture.h"
#include "tests/unit/service/store/promote_fixture.h"

namespace cairn {
namespace {

TEST_F(PromoteTest, NobodyWaitsAndLateBytesAreRightAndBecomeACopy) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  StartedGet get(store, space, 1);
  EXPECT_FALSE(get.is_over()) << "Get() has returned all the same";
  ASSERT_EQ(cold.waiting().size(), 1u);
  Complete(cold.waiting());
  ASSERT_TRUE(get.Await().ok());
  EXPECT_EQ(get.Await()->reply.tier, static_cast<uint8_t>(TierId::kSsd));
  ExpectRight(get, 1);
  AwaitReads();
  StartedGet again(store, space, 1);
  EXPECT_TRUE(again.is_over()) << "it is in the host tier";
  ExpectRight(again, 1);
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"copied\"}"), 1);
  EXPECT_EQ(Metric("cairn_gets_total{outcome=\"hit\",tier=\"ssd\"}"), 1);
  EXPECT_EQ(Metric("cairn_gets_total{outcome=\"hit\",tier=\"host\"}"), 1);
}

TEST_F(PromoteTest, ADeadlineIsAMissAtOnceAndTheReadGoesOn) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  StartedGet get(store, space, 1, store.clock.Now() + absl::Seconds(1));
  StartedGet patient(store, space, 1, store.clock.Now() + absl::Seconds(9));
  store.pool->Wake();
  EXPECT_FALSE(get.is_over());
  store.clock.Advance(absl::Seconds(1));
  store.pool->Wake();
  EXPECT_TRUE(absl::IsNotFound(get.Await().status()));
  EXPECT_FALSE(patient.is_over());
  store.clock.Advance(absl::Seconds(8));
  store.pool->Wake();
  EXPECT_TRUE(absl::IsNotFound(patient.Await().status()));
  EXPECT_EQ(Metric("cairn_gets_total{outcome=\"miss\",tier=\"none\"}"), 2);
  EXPECT_EQ(store.gets->promotions().count(), 1u);
  EXPECT_GT(store.host->used_bytes(), 0u) << "the tier may still write there";
  Complete(cold.waiting());
  AwaitReads();
  StartedGet again(store, space, 1);
  EXPECT_TRUE(again.is_over()) << "what was read is a copy";
  ExpectRight(again, 1);
}

TEST_F(PromoteTest, AReadHasTheLatestDeadlineOfItsGets) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  const absl::Time soon = store.clock.Now() + absl::Seconds(1);
  const absl::Time later = soon + absl::Seconds(8);
  StartedGet hasty(store, space, 1, soon);
  StartedGet patient(store, space, 1, later);
  EXPECT_EQ(cold.TakeReads().at(0).deadline, soon);
  store.clock.Advance(absl::Seconds(1));
  Complete(cold.waiting(), absl::DeadlineExceededError("not begun"));
  store.pool->Wake();
  EXPECT_TRUE(absl::IsNotFound(hasty.Await().status()));
  EXPECT_EQ(cold.TakeReads().at(0).deadline, later) << "the other has more time";
  Complete(cold.waiting());
  ExpectRight(patient, 1);
  AwaitReads();
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"copied\"}"), 1);
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"late\"}"), 0);
}

TEST_F(PromoteTest, AReadThatNobodyWaitsForEndsUnread) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  StartedGet get(store, space, 1, store.clock.Now() + absl::Seconds(1));
  StartedGet other(store, space, 1, store.clock.Now() + absl::Milliseconds(500));
  store.clock.Advance(absl::Seconds(1));
  Complete(cold.waiting(), absl::DeadlineExceededError("not begun"));
  store.pool->Wake();
  EXPECT_TRUE(absl::IsNotFound(get.Await().status()));
  EXPECT_TRUE(absl::IsNotFound(other.Await().status()));
  AwaitReads();
  EXPECT_TRUE(cold.waiting().empty());
  EXPECT_EQ(store.host->used_bytes(), 0u) << "it took room for nobody";
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"late\"}"), 1);
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"failed\"}"), 0);
  cold.HoldCompletions(false);
  StartedGet again(store, space, 1);
  ExpectRight(again, 1);
}

TEST_F(PromoteTest, AFinishedReadIsAnsweredHoweverMuchWaits) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  // Room for one get.
  PathPool pool(1, /*gets_max=*/1);
  Gets gets(store.spaces, *store.index, *store.tiers, pool, store.clock);
  absl::Notification let_go;
  pool.Submit([&](const absl::Status&) { let_go.WaitForNotification(); }, PathPool::Kind::kGet);
  std::atomic<int> hits{0};
  proto::Get body;
  body.space_id = space.id();
  body.key = StoreFixture::Key(1);
  body.slice = {0, 2, 0, 4};
  for (int i = 0; i < 3; ++i) {
    StoreFixture::RunGet(gets, body, StoreFixture::RequestOf(store.session),
                         limits::kTransferBytesMax,
                         [&](const absl::StatusOr<Answer>& answer) { hits += answer.ok(); });
  }
  // Another get of the pool, if it takes it.
  auto refusal = std::make_shared<absl::Status>();
  const auto submit = [&] {
    *refusal = absl::OkStatus();
    pool.Submit([refusal](const absl::Status& why) { refusal->Update(why); }, PathPool::Kind::kGet);
    return *refusal;
  };
  EXPECT_TRUE(WaitFor([&] { return submit().ok(); })) << "the thread has the first";
  EXPECT_TRUE(absl::IsResourceExhausted(submit()));
  Complete(cold.waiting());
  let_go.Notify();
  EXPECT_TRUE(WaitFor([&] { return hits == 3; }));
  EXPECT_TRUE(WaitFor([&] { return gets.promotions().count() == 0; }));
  gets.Stop();
  pool.Stop();
}

TEST_F(PromoteTest, ARealDeadlineNeedsNobodyToWake) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  PathPool pool(2);
  Gets gets(store.spaces, *store.index, *store.tiers, pool, RealClock::Get());
  proto::Get body;
  body.space_id = space.id();
  body.key = StoreFixture::Key(1);
  body.slice = {0, 2, 0, 4};
  std::atomic<bool> is_missed{false};
  StoreFixture::RunGet(
      gets, body, StoreFixture::RequestOf(store.session, MonotonicNow() + absl::Milliseconds(30)),
      limits::kTransferBytesMax,
      [&](const absl::StatusOr<Answer>& answer) { is_missed = absl::IsNotFound(answer.status()); });
  EXPECT_TRUE(WaitFor([&] { return is_missed.load(); }, absl::Seconds(10)));
  gets.Stop();
  pool.Stop();
}

TEST_F(PromoteTest, ATierThatNeverAnswersIsStopped) {
  PutColdBlocks(2);
  cold.HoldCompletions(true);
  StartedGet first(store, space, 1), second(store, space, 2);
  store.gets->Stop();
  EXPECT_TRUE(absl::IsNotFound(first.Await().status()));
  EXPECT_TRUE(absl::IsNotFound(second.Await().status()));
  StartedGet late(store, space, 1);
  EXPECT_TRUE(absl::IsNotFound(late.Await().status())) << "nothing is read any more";
  EXPECT_THAT(late.Await().status().ToString(), testing::HasSubstr("stopping"));
}

TEST_F(PromoteTest, AnErrorIsAMissAndTheImageStays) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  StartedGet get(store, space, 1);
  Complete(cold.waiting(), absl::UnavailableError("the device is out"));
  EXPECT_TRUE(absl::IsNotFound(get.Await().status()));
  AwaitReads();
  EXPECT_EQ(store.host->used_bytes(), 0u);
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"failed\"}"), 1);
  cold.HoldCompletions(false);
  StartedGet again(store, space, 1);
  ExpectRight(again, 1);
}

TEST_F(PromoteTest, WrongBytesAreAMissDroppedCountedAndLoggedOnce) {
  const LogCapture log;
  PutColdBlocks(2);
  {
    const CopyPins pins = store.index->Lookup({space.id(), StoreFixture::Key(1)}, 0, whole);
    cold.Damage(pins[0].extent().offset());
  }
  cold.HoldCompletions(true);
  StartedGet first(store, space, 1), second(store, space, 1);
  Complete(cold.waiting());
  EXPECT_TRUE(absl::IsNotFound(first.Await().status()));
  EXPECT_TRUE(absl::IsNotFound(second.Await().status()));
  AwaitReads();
  EXPECT_EQ(log.Count("image is damaged: dropped"), 1u);
  EXPECT_EQ(Metric("cairn_corrupt_tiles_total{where=\"ssd\"}"), 1);
  EXPECT_EQ(Metric("cairn_gets_total{outcome=\"corrupt\",tier=\"ssd\"}"), 2);
  EXPECT_EQ(store.index->figures().image_count, 1u);
  EXPECT_EQ(store.host->used_bytes(), 0u) << "no copy of them";
}

TEST_F(PromoteTest, WhatTheTierCannotReadIsDropped) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  StartedGet get(store, space, 1);
  Complete(cold.waiting(), absl::DataLossError("a sector"));
  EXPECT_TRUE(absl::IsNotFound(get.Await().status()));
  AwaitReads();
  EXPECT_EQ(store.index->figures().image_count, 0u);
}

TEST_F(PromoteTest, TheBytesOfAnotherBlockAreAMiss) {
  const LogCapture log;
  PutColdBlocks(2);
  {
    const CopyPins pins = store.index->Lookup({space.id(), StoreFixture::Key(1)}, 0, whole);
    const auto other = StoreFixture::Image(space, StoreFixture::Key(2), whole, "raw");
    cold.Write({.place = &pins[0].extent(),
                .image = pins[0].facts(),
                .copy = pins[0].copy(),
                .source = other},
               [](const absl::Status&) {});
  }
  StartedGet get(store, space, 1);
  EXPECT_TRUE(absl::IsNotFound(get.Await().status()));
  AwaitReads();
  EXPECT_EQ(log.Count("image is damaged: dropped"), 1u);
  EXPECT_EQ(store.index->figures().image_count, 1u);
}

TEST_F(PromoteTest, ImagesOfOneAnswerMayComeInAnyOrder) {
  PutCold(1, kLeft);
  PutCold(1, kRight);
  EvictHost();
  cold.HoldCompletions(true);
  StartedGet get(store, space, 1);
  const std::vector<TransferId> reads = cold.waiting();
  ASSERT_EQ(reads.size(), 2u);
  Complete({reads[1]});
  EXPECT_FALSE(get.is_over());
  Complete({reads[0]});
  ExpectRight(get, 1);
  AwaitReads();
}

TEST_F(PromoteTest, GetsOfOneBlockShareOneRead) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  std::vector<std::unique_ptr<StartedGet>> gets;
  for (int i = 0; i < 8; ++i) {
    gets.push_back(std::make_unique<StartedGet>(store, space, 1));
  }
  EXPECT_EQ(cold.waiting().size(), 1u);
  Complete(cold.waiting());
  for (const auto& get : gets) {
    ExpectRight(*get, 1);
  }
  AwaitReads();
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"shared\"}"), 7);
}

TEST_F(PromoteTest, ABlockThatIsDeletedMeanwhileIsAMissAndLeavesNothing) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  StartedGet get(store, space, 1);
  store.index->Delete(space.id(), {StoreFixture::Key(1)});
  Complete(cold.waiting());
  EXPECT_TRUE(absl::IsNotFound(get.Await().status()));
  AwaitReads();
}

// Blocks of 512 KiB: three are within an eighth of the host tier, and staging has room for one.
class PromoteRoomTest : public PromoteTest {
 protected:
  PromoteRoomTest() : PromoteTest(1_MiB, 512) {}
};

TEST_F(PromoteRoomTest, NoRoomMeansStagingThenAMiss) {
  PutColdBlocks(6);
  cold.HoldCompletions(true);
  std::vector<std::unique_ptr<StartedGet>> gets;
  for (uint64_t block = 1; block <= 6; ++block) {
    gets.push_back(std::make_unique<StartedGet>(store, space, block));
  }
  EXPECT_EQ(cold.waiting().size(), 4u);
  EXPECT_TRUE(absl::IsNotFound(gets[4]->Await().status()));
  EXPECT_TRUE(absl::IsNotFound(gets[5]->Await().status()));
  EXPECT_LE(store.host->used_bytes(), 16_MiB / 8);
  Complete(cold.waiting());
  for (uint64_t block = 1; block <= 4; ++block) {
    ExpectRight(*gets[block - 1], block);
  }
  AwaitReads();
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"copied\"}"), 3);
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"staged\"}"), 1);
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"refused\"}"), 2);
}

TEST_F(PromoteTest, NothingIsWrongAndNothingIsLeftWhateverTheTierDoes) {
  RunReaders(/*block_count=*/24, {whole});
}

}  // namespace
}  // namespace cairn
