// SPDX-License-Identifier: Apache-2.0
// Gets of images that have to be read through their tier: late, never, out of order, with an error,
// with wrong bytes, and always on another thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/log_capture.h"
#include "tests/support/memory_tier.h"
#include "tests/support/metric_capture.h"
#include "tests/support/random.h"
#include "tests/support/store_fixture.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

constexpr codecs::Slice kLeft = {0, 2, 0, 2}, kRight = {0, 2, 2, 2};

// A get that may be answered later, by another thread.
class StartedGet {
 public:
  StartedGet(StoreFixture& store, const SpaceEntry& space, uint64_t block,
             absl::Time deadline = absl::InfiniteFuture()) {
    OwnedGet get = {
        .session = store.session, .target_bytes = limits::kTransferBytesMax, .deadline = deadline};
    get.get.space_id = space.id();
    get.get.key = StoreFixture::Key(block);
    get.get.slice = {0, 2, 0, 4};
    get.get.form = proto::Form::kSource;
    Get(*store.get, std::move(get), [this](absl::StatusOr<Answer> answer) {
      answer_ = std::move(answer);
      CAIRN_CHECK(!is_over_.exchange(true), "answered twice");
    });
  }
  bool is_over() const { return is_over_; }
  absl::StatusOr<Answer>& Await() {
    CAIRN_CHECK(WaitFor([&] { return is_over(); }));
    return answer_;
  }

 private:
  absl::StatusOr<Answer> answer_;
  std::atomic<bool> is_over_{false};
};

class PromoteTest : public ::testing::Test {
 protected:
  explicit PromoteTest(uint64_t staging_bytes = 32_MiB, uint32_t tokens_per_block = 16)
      : store(16_MiB, 4096, staging_bytes, Others()),
        cold(static_cast<MemoryTier&>(*store.tiers->Find(TierId::kSsd))),
        space(store.OpenSpace("raw", Identity(tokens_per_block))),
        whole(StoreFixture::Whole(space)) {}
  ~PromoteTest() override {
    EXPECT_EQ(store.get->waiting.count(), 0u);
    EXPECT_EQ(store.get->promotions.count(), 0u);
    EXPECT_EQ(store.host->staging_bytes(), 0u);
    EXPECT_EQ(store.index->pinned_bytes(), 0u);
    store.index->Invalidate(space.id());
    EXPECT_EQ(store.host->used_bytes(), 0u);
    EXPECT_EQ(cold.used_bytes(), 0u) << "no pin of a place is left";
  }

  static std::vector<std::unique_ptr<CopyTier>> Others() {
    std::vector<std::unique_ptr<CopyTier>> others;
    others.push_back(std::make_unique<MemoryTier>(
        TierTraits{.id = TierId::kSsd, .may_hold_last = true}, 64_MiB));
    return others;
  }
  static proto::SpaceIdentity Identity(uint32_t tokens_per_block) {
    proto::SpaceIdentity identity = StoreFixture::Identity();
    identity.tokens_per_block = tokens_per_block;
    return identity;
  }

  // Puts a slice of a block and leaves the cold tier the only one that has it.
  void PutCold(uint64_t block, const codecs::Slice& slice) {
    const proto::BlockKey key = StoreFixture::Key(block);
    CAIRN_CHECK_OK(store.PutSource(space, key, slice));
    const ResidentPins pins = store.index->Lookup({space.id(), key}, 0, slice);
    CopyWriter writer = store.index->BeginCopy(pins[0], TierId::kSsd);
    auto extent = cold.Reserve(pins[0].bytes().size());
    CAIRN_CHECK_OK(extent);
    CopyFacts facts = pins[0].copy();
    facts.tier = TierId::kSsd;
    absl::Status written;
    cold.Write(
        {.place = &*extent, .image = pins[0].facts(), .copy = facts, .source = pins[0].bytes()},
        [&](absl::Status status) { written = std::move(status); });
    CAIRN_CHECK_OK(written);
    NewCopy copy;
    copy.recipe = facts.recipe;
    copy.extent = *std::move(extent);
    copy.directory_crc = facts.directory_crc;
    copy.tenant = "acme";
    CAIRN_CHECK(store.index->FinishCopy(std::move(writer), std::move(copy)));
  }
  void EvictHost() {
    store.EvictHost();
    CAIRN_CHECK(store.host->used_bytes() == 0);
  }
  // Blocks 1 to `count`.
  void PutColdBlocks(uint64_t count) {
    for (uint64_t block = 1; block <= count; ++block) {
      PutCold(block, whole);
    }
    EvictHost();
  }
  // On a thread of its own, as a device would.
  void Complete(const std::vector<TransferId>& transfers,
                const absl::Status& status = absl::OkStatus()) {
    std::thread device([&] {
      for (const TransferId transfer : transfers) {
        cold.Complete(transfer, status);
      }
    });
    device.join();
  }
  void AwaitReads() {
    EXPECT_TRUE(WaitFor([&] { return store.get->promotions.count() == 0; }));
  }
  void ExpectRight(StartedGet& get, uint64_t block) {
    absl::StatusOr<Answer>& answer = get.Await();
    ASSERT_TRUE(answer.ok()) << answer.status();
    const auto source = StoreFixture::Source(space, StoreFixture::Key(block), 0, whole);
    EXPECT_TRUE(
        std::equal(source.begin(), source.end(), answer->payload.begin(), answer->payload.end()))
        << "wrong bytes of block " << block;
    answer = absl::NotFoundError("");  // sent
  }
  double Metric(const std::string& series) {
    MetricCapture metrics;
    store.get->Report(metrics);
    return metrics.Value(series);
  }

  StoreFixture store;
  MemoryTier& cold;
  const SpaceEntry& space;
  const codecs::Slice whole;
};

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
  EXPECT_EQ(store.get->promotions.count(), 1u);
  EXPECT_GT(store.host->used_bytes(), 0u) << "the tier may still write there";
  Complete(cold.waiting());
  AwaitReads();
  StartedGet again(store, space, 1);
  EXPECT_TRUE(again.is_over()) << "what was read is a copy";
  ExpectRight(again, 1);
}

TEST_F(PromoteTest, ARealDeadlineNeedsNobodyToWake) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  PathPool pool(2);
  GetPath path(store.spaces, *store.index, *store.tiers, pool, RealClock::Get());
  OwnedGet get = {.session = store.session, .deadline = MonotonicNow() + absl::Milliseconds(30)};
  get.target_bytes = limits::kTransferBytesMax;
  get.get.space_id = space.id();
  get.get.key = StoreFixture::Key(1);
  get.get.slice = {0, 2, 0, 4};
  std::atomic<bool> is_missed{false};
  Get(path, std::move(get),
      [&](const absl::StatusOr<Answer>& answer) { is_missed = absl::IsNotFound(answer.status()); });
  EXPECT_TRUE(WaitFor([&] { return is_missed.load(); }, absl::Seconds(10)));
  path.Stop();
  pool.Stop();
}

TEST_F(PromoteTest, ATierThatNeverAnswersIsStopped) {
  PutColdBlocks(2);
  cold.HoldCompletions(true);
  StartedGet first(store, space, 1), second(store, space, 2);
  store.get->Stop();
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
    const ResidentPins pins = store.index->Lookup({space.id(), StoreFixture::Key(1)}, 0, whole);
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
  EXPECT_EQ(store.index->figures().image_count, 0u);
}

TEST_F(PromoteTest, TheBytesOfAnotherBlockAreAMiss) {
  const LogCapture log;
  PutColdBlocks(2);
  {
    const ResidentPins pins = store.index->Lookup({space.id(), StoreFixture::Key(1)}, 0, whole);
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

// A device that answers at random, beside readers that come at random.
TEST_F(PromoteTest, NothingIsWrongAndNothingIsLeftWhateverTheTierDoes) {
  const LogCapture log;
  constexpr uint64_t kBlocks = 24;
  constexpr int kReaders = 3, kRounds = 200;
  PutColdBlocks(kBlocks);
  cold.HoldCompletions(true);
  std::atomic<int> readers{kReaders};
  std::atomic<int> hits{0};
  std::thread device([&] {
    std::mt19937_64 random = SeededRandom(99);
    while (readers > 0 || store.get->promotions.count() > 0) {
      const std::vector<TransferId> waiting = cold.waiting();
      if (!waiting.empty()) {
        cold.Complete(
            waiting[random() % waiting.size()],
            random() % 4 == 0 ? absl::UnavailableError("now and then") : absl::OkStatus());
      }
      if (random() % 8 == 0) {
        store.clock.Advance(absl::Milliseconds(300));
        store.pool->Wake();
        store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity);
      }
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kReaders; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random = SeededRandom(static_cast<uint64_t>(thread));
      for (int round = 0; round < kRounds; ++round) {
        const uint64_t block = 1 + random() % kBlocks;
        StartedGet get(store, space, block, store.clock.Now() + absl::Seconds(random() % 3));
        if (get.Await().ok()) {
          ++hits;
          ExpectRight(get, block);
        }
      }
      --readers;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  device.join();
  EXPECT_GT(hits, 0);
}

}  // namespace
}  // namespace cairn
