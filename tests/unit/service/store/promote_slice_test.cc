// SPDX-License-Identifier: Apache-2.0
// Gets of slices that are read out of their tier without the rest of the image. Blocks have two
// layers of four heads, K and V of 32 KiB each: an image of 512 KiB.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "codecs/image/image.h"
#include "service/limits.h"
#include "tests/support/log_capture.h"
#include "tests/unit/service/store/promote_fixture.h"

namespace cairn {
namespace {

using Asked = MemoryTier::Asked;

constexpr uint64_t kPrefix = 4_KiB;  // header and directory, in whole pages
constexpr uint64_t kTile = 32_KiB;

uint64_t SumOf(const std::vector<Asked>& reads) {
  uint64_t bytes = 0;
  for (const Asked& read : reads) {
    bytes += read.bytes;
  }
  return bytes;
}

constexpr codecs::Slice HeadOf(uint16_t head) { return {0, 2, head, 1}; }

class PromoteSliceTest : public PromoteTest {
 protected:
  explicit PromoteSliceTest(const char* recipe = "raw", uint32_t tokens = 512, uint32_t layers = 2)
      : PromoteTest(32_MiB, tokens, recipe, layers) {}
  // The first byte of the first tile of a head.
  void DamageTile(uint64_t block, uint16_t layer, uint16_t head) {
    const CopyPins pins = store.index->Lookup({space.id(), StoreFixture::Key(block)}, 0, whole);
    codecs::ImageView view;
    const auto image = StoreFixture::Image(space, StoreFixture::Key(block), whole, "raw");
    CAIRN_CHECK(codecs::ParseImage(image, &view) == codecs::Error::kOk);
    cold.Damage(pins[0].extent().offset(), view.Tile(view.IndexOf({layer, head, 0})).offset);
  }
  void ExpectMiss(StartedGet& get) {
    EXPECT_TRUE(absl::IsNotFound(get.Await().status())) << get.Await().status();
    AwaitReads();
  }
  // Lets the tier do what it has now, and waits until the read goes on: a head lies in two places
  // or more.
  void CompleteHeader() {
    ASSERT_EQ(cold.waiting().size(), 1u);
    const TransferId header = cold.waiting()[0];
    Complete({header});
    ASSERT_TRUE(WaitFor([&] { return cold.waiting().size() >= 2; }));
  }
};

TEST_F(PromoteSliceTest, ReadsHeaderDirectoryAndTheTilesThatAreWanted) {
  PutColdBlocks(1);
  StartedGet get(store, space, 1, {.slice = HeadOf(1)});
  ExpectRight(get, 1, HeadOf(1));
  AwaitReads();
  const std::vector<Asked> reads = cold.TakeReads();
  ASSERT_EQ(reads.size(), 3u) << "the head lies in one place in each layer";
  EXPECT_EQ(reads[0].offset, 0u);
  EXPECT_EQ(reads[0].bytes, kPrefix);
  for (const Asked& read : reads) {
    EXPECT_EQ(read.offset % 4_KiB, 0u);
    EXPECT_EQ(read.bytes % 4_KiB, 0u);
  }
  EXPECT_LE(SumOf(reads), kPrefix + 2 * (2 * kTile + 4_KiB));
  EXPECT_EQ(store.host->used_bytes(), 0u) << "no copy of it";
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"sliced\"}"), 1);
  EXPECT_EQ(Metric("cairn_promoted_bytes_total{kind=\"slice\"}"), SumOf(reads));
  EXPECT_EQ(Metric("cairn_promoted_bytes_total{kind=\"whole\"}"), 0);
  EXPECT_EQ(Metric("cairn_gets_total{outcome=\"hit\",tier=\"ssd\"}"), 1);
  EXPECT_EQ(Metric("cairn_promoting_bytes"), 0);
}

TEST_F(PromoteSliceTest, ReadsALayerInOnePart) {
  PutColdBlocks(1);
  constexpr codecs::Slice kHeads = {1, 1, 1, 3};
  StartedGet get(store, space, 1, {.slice = kHeads});
  ExpectRight(get, 1, kHeads);
  AwaitReads();
  const std::vector<Asked> reads = cold.TakeReads();
  ASSERT_EQ(reads.size(), 2u);
  // The last tile ends the image, in the middle of a page.
  EXPECT_LE(SumOf(reads), kPrefix + 6 * kTile + 4_KiB);
}

TEST_F(PromoteSliceTest, HalfOfAnImageIsReadWhole) {
  PutColdBlocks(1);
  StartedGet get(store, space, 1, {.slice = {1, 1, 0, 4}});
  ExpectRight(get, 1, {1, 1, 0, 4});
  AwaitReads();
  EXPECT_EQ(cold.TakeReads().size(), 1u);
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"copied\"}"), 1);
  EXPECT_GT(Metric("cairn_promoted_bytes_total{kind=\"whole\"}"), 512_KiB);
}

TEST_F(PromoteSliceTest, WhatIsReadAgainAndAgainIsReadWhole) {
  PutColdBlocks(2);
  for (uint16_t head = 0; head < 4; ++head) {
    StartedGet get(store, space, 1, {.slice = HeadOf(head)});
    ExpectRight(get, 1, HeadOf(head));
  }
  AwaitReads();
  EXPECT_EQ(store.host->used_bytes(), 0u) << "four readers that share a block read it once";
  StartedGet again(store, space, 1, {.slice = HeadOf(2)});
  ExpectRight(again, 1, HeadOf(2));
  AwaitReads();
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"copied\"}"), 1);
  cold.TakeReads();
  StartedGet last(store, space, 1, {.slice = HeadOf(2)});
  EXPECT_TRUE(last.is_over());
  ExpectRight(last, 1, HeadOf(2));
  StartedGet other(store, space, 2, {.slice = HeadOf(2)});
  ExpectRight(other, 2, HeadOf(2));
  EXPECT_EQ(cold.TakeReads().size(), 3u) << "each copy counts for itself";
  AwaitReads();
}

TEST_F(PromoteSliceTest, DamageOfAWantedTileIsAMissAndDropsTheImage) {
  const LogCapture log;
  PutColdBlocks(1);
  DamageTile(1, 1, 2);
  StartedGet get(store, space, 1, {.slice = HeadOf(2)});
  ExpectMiss(get);
  EXPECT_EQ(log.Count("image is damaged: dropped"), 1u);
  EXPECT_EQ(Metric("cairn_corrupt_tiles_total{where=\"ssd\"}"), 1);
  EXPECT_EQ(Metric("cairn_gets_total{outcome=\"corrupt\",tier=\"ssd\"}"), 1);
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"failed\"}"), 1);
  EXPECT_EQ(store.index->figures().image_count, 0u);
}

TEST_F(PromoteSliceTest, DamageOfAnotherTileIsNotSeen) {
  PutColdBlocks(1);
  DamageTile(1, 1, 1);
  DamageTile(1, 1, 3);
  StartedGet get(store, space, 1, {.slice = HeadOf(2)});
  ExpectRight(get, 1, HeadOf(2));
  AwaitReads();
  EXPECT_EQ(store.index->figures().image_count, 1u);
}

TEST_F(PromoteSliceTest, DamageOfTheDirectoryIsAMissAndDropsTheImage) {
  PutColdBlocks(1);
  {
    const CopyPins pins = store.index->Lookup({space.id(), StoreFixture::Key(1)}, 0, whole);
    cold.Damage(pins[0].extent().offset(), 400);
  }
  StartedGet get(store, space, 1, {.slice = HeadOf(2)});
  ExpectMiss(get);
  EXPECT_EQ(cold.TakeReads().size(), 1u) << "nothing is read where a damaged directory leads";
  EXPECT_EQ(store.index->figures().image_count, 0u);
}

TEST_F(PromoteSliceTest, TheBytesOfAnotherBlockAreAMiss) {
  PutColdBlocks(1);
  {
    const CopyPins pins = store.index->Lookup({space.id(), StoreFixture::Key(1)}, 0, whole);
    const auto other = StoreFixture::Image(space, StoreFixture::Key(2), whole, "raw");
    cold.Write({.place = &pins[0].extent(),
                .image = pins[0].facts(),
                .copy = pins[0].copy(),
                .source = other},
               [](const absl::Status&) {});
  }
  StartedGet get(store, space, 1, {.slice = HeadOf(2)});
  ExpectMiss(get);
  EXPECT_EQ(store.index->figures().image_count, 0u);
}

TEST_F(PromoteSliceTest, AnErrorOfEitherReadIsAMissAndTheImageStays) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  for (const bool is_header_read : {false, true}) {
    StartedGet get(store, space, 1, {.slice = HeadOf(0)});
    if (is_header_read) {
      CompleteHeader();
    }
    const std::vector<TransferId> waiting = cold.waiting();
    Complete({waiting[0]}, absl::UnavailableError("the device is out"));
    Complete(waiting);
    ExpectMiss(get);
  }
  EXPECT_EQ(store.index->figures().image_count, 1u);
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"failed\"}"), 2);
  StartedGet unreadable(store, space, 1, {.slice = HeadOf(0)});
  CompleteHeader();
  const std::vector<TransferId> waiting = cold.waiting();
  Complete({waiting[1]}, absl::DataLossError("a sector"));
  Complete(waiting);
  ExpectMiss(unreadable);
  EXPECT_EQ(store.index->figures().image_count, 0u);
}

TEST_F(PromoteSliceTest, ADeadlineBetweenTheReadsIsAMissAtOnce) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  StartedGet get(store, space, 1, {.slice = HeadOf(0)}, store.clock.Now() + absl::Seconds(1));
  CompleteHeader();
  store.clock.Advance(absl::Seconds(1));
  store.pool->Wake();
  EXPECT_TRUE(absl::IsNotFound(get.Await().status()));
  EXPECT_EQ(store.gets->promotions().count(), 1u);
  EXPECT_GT(store.host->staging_bytes(), 0u) << "the tier may still write there";
  Complete(cold.waiting());
  AwaitReads();
}

TEST_F(PromoteSliceTest, ATierThatNeverAnswersIsStopped) {
  PutColdBlocks(2);
  cold.HoldCompletions(true);
  StartedGet second(store, space, 2, {.slice = HeadOf(0)});
  CompleteHeader();
  StartedGet first(store, space, 1, {.slice = HeadOf(0)});
  store.gets->Stop();
  EXPECT_TRUE(absl::IsNotFound(first.Await().status()));
  EXPECT_TRUE(absl::IsNotFound(second.Await().status()));
}

TEST_F(PromoteSliceTest, GetsShareWhatBringsTheirSlice) {
  PutColdBlocks(2);
  cold.HoldCompletions(true);
  StartedGet first(store, space, 1, {.slice = HeadOf(0)});
  StartedGet same(store, space, 1, {.slice = HeadOf(0)});
  EXPECT_EQ(cold.waiting().size(), 1u);
  StartedGet other(store, space, 1, {.slice = HeadOf(1)});
  EXPECT_EQ(cold.waiting().size(), 2u);
  StartedGet all(store, space, 2);
  StartedGet some(store, space, 2, {.slice = HeadOf(1)});
  EXPECT_EQ(cold.waiting().size(), 3u) << "the whole image is on its way";
  cold.HoldCompletions(false);
  Complete(cold.waiting());
  ExpectRight(first, 1, HeadOf(0));
  ExpectRight(same, 1, HeadOf(0));
  ExpectRight(other, 1, HeadOf(1));
  ExpectRight(all, 2);
  ExpectRight(some, 2, HeadOf(1));
  AwaitReads();
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"shared\"}"), 2);
}

TEST_F(PromoteSliceTest, ABlockThatIsDeletedMeanwhileKeepsItsPlaceUntilItIsRead) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  StartedGet get(store, space, 1, {.slice = HeadOf(3)});
  CompleteHeader();
  store.index->Delete(space.id(), {StoreFixture::Key(1)});
  EXPECT_GT(cold.used_bytes(), 0u);
  Complete(cold.waiting());
  ExpectRight(get, 1, HeadOf(3));
  AwaitReads();
  EXPECT_EQ(cold.used_bytes(), 0u);
}

TEST_F(PromoteSliceTest, ReadsUnderWayTakeAnEighthOfTheHostTierAtMost) {
  PutColdBlocks(20);
  cold.HoldCompletions(true);
  std::vector<std::unique_ptr<StartedGet>> gets;
  for (uint64_t block = 1; block <= 20; ++block) {
    gets.push_back(
        std::make_unique<StartedGet>(store, space, block, StartedGet::Ask{.slice = HeadOf(0)}));
  }
  Complete(cold.waiting());
  EXPECT_TRUE(WaitFor([&] {
    return store.gets->waiting().count() == static_cast<size_t>(cold.waiting().size() / 2);
  }));
  EXPECT_LE(Metric("cairn_promoting_bytes"), 16_MiB / limits::kPromotedShareOfHost);
  EXPECT_GT(Metric("cairn_promoting_bytes"), 16_MiB / limits::kPromotedShareOfHost / 2);
  const size_t reading = cold.waiting().size() / 2;
  EXPECT_LT(reading, 20u);
  Complete(cold.waiting());
  size_t hits = 0;
  for (uint64_t block = 1; block <= 20; ++block) {
    if (gets[block - 1]->Await().ok()) {
      ++hits;
      ExpectRight(*gets[block - 1], block, HeadOf(0));
    }
  }
  EXPECT_EQ(hits, reading);
  AwaitReads();
}

TEST_F(PromoteSliceTest, NothingIsWrongAndNothingIsLeftWhateverTheTierDoes) {
  RunReaders(/*block_count=*/6, {HeadOf(0), HeadOf(1), HeadOf(2), {1, 1, 0, 3}, whole});
}

// Thirty layers of 32 KiB: a head lies in thirty places.
class PromoteManyPartsTest : public PromoteSliceTest {
 protected:
  PromoteManyPartsTest() : PromoteSliceTest("raw", 64, 30) {}
  static constexpr codecs::Slice kHead = {0, 30, 1, 1};
};

TEST_F(PromoteManyPartsTest, AFewPartsAreReadAtATime) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  StartedGet get(store, space, 1, {.slice = kHead});
  CompleteHeader();
  ASSERT_TRUE(WaitFor([&] { return cold.waiting().size() == limits::kSlicePartsMax; }));
  Complete({cold.waiting()[3]});
  EXPECT_EQ(cold.waiting().size(), limits::kSlicePartsMax) << "the next has begun";
  while (!cold.waiting().empty()) {
    Complete({cold.waiting().back()});
  }
  ExpectRight(get, 1, kHead);
  AwaitReads();
  EXPECT_EQ(cold.TakeReads().size(), 31u);
  cold.HoldCompletions(false);
  StartedGet at_once(store, space, 1, {.slice = kHead});
  ExpectRight(at_once, 1, kHead);
  AwaitReads();
}

// Half of the parts under way end unread: they have the deadline of the get that began them.
TEST_F(PromoteManyPartsTest, PartsThatEndUnreadAreReadForAGetWithMoreTime) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  const absl::Time soon = store.clock.Now() + absl::Seconds(1);
  const absl::Time later = soon + absl::Seconds(8);
  StartedGet hasty(store, space, 1, {.slice = kHead}, soon);
  CompleteHeader();
  ASSERT_TRUE(WaitFor([&] { return cold.waiting().size() == limits::kSlicePartsMax; }));
  StartedGet patient(store, space, 1, {.slice = kHead}, later);
  for (const Asked& read : cold.TakeReads()) {
    EXPECT_EQ(read.deadline, soon);
  }
  store.clock.Advance(absl::Seconds(1));
  store.pool->Wake();
  EXPECT_TRUE(absl::IsNotFound(hasty.Await().status()));
  const std::vector<TransferId> begun = cold.waiting();
  for (size_t i = 0; i < begun.size(); ++i) {
    Complete({begun[i]}, i % 2 == 0 ? absl::DeadlineExceededError("not begun") : absl::OkStatus());
  }
  while (!cold.waiting().empty()) {
    Complete({cold.waiting().front()});
  }
  ExpectRight(patient, 1, kHead);
  AwaitReads();
  const std::vector<Asked> reads = cold.TakeReads();
  EXPECT_EQ(reads.size(), 30 - limits::kSlicePartsMax + limits::kSlicePartsMax / 2);
  for (const Asked& read : reads) {
    EXPECT_EQ(read.deadline, later);
  }
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"sliced\"}"), 1);
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"late\"}"), 0);
}

TEST_F(PromoteManyPartsTest, PartsThatNobodyWaitsForEndUnreadAndNoMoreBegin) {
  PutColdBlocks(1);
  cold.HoldCompletions(true);
  StartedGet get(store, space, 1, {.slice = kHead}, store.clock.Now() + absl::Seconds(1));
  CompleteHeader();
  ASSERT_TRUE(WaitFor([&] { return cold.waiting().size() == limits::kSlicePartsMax; }));
  cold.TakeReads();
  store.clock.Advance(absl::Seconds(1));
  store.pool->Wake();
  EXPECT_TRUE(absl::IsNotFound(get.Await().status()));
  Complete(cold.waiting(), absl::DeadlineExceededError("not begun"));
  AwaitReads();
  EXPECT_TRUE(cold.waiting().empty());
  EXPECT_TRUE(cold.TakeReads().empty());
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"late\"}"), 1);
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"failed\"}"), 0);
  cold.HoldCompletions(false);
  StartedGet again(store, space, 1, {.slice = kHead});
  ExpectRight(again, 1, kHead);
}

// What a get of the slice gets is the same, whether the image was in memory or not.
class PromoteRecipeTest : public PromoteSliceTest, public testing::WithParamInterface<const char*> {
 protected:
  PromoteRecipeTest() : PromoteSliceTest(GetParam(), 1024) {}
};

TEST_P(PromoteRecipeTest, ASliceIsTheSameFromEitherTier) {
  std::vector<std::vector<std::byte>> expected;
  const auto bytes_of = [](const absl::StatusOr<Answer>& answer) {
    CAIRN_CHECK_OK(answer);
    return std::vector<std::byte>(answer->payload.begin(), answer->payload.end());
  };
  PutCold(1, whole);
  constexpr proto::Form kForms[] = {proto::Form::kSource, proto::Form::kImage};
  for (const proto::Form form : kForms) {
    expected.push_back(bytes_of(store.RunGet(space, StoreFixture::Key(1), HeadOf(2), form)));
  }
  EvictHost();
  for (size_t i = 0; i < 2; ++i) {
    StartedGet get(store, space, 1, {.slice = HeadOf(2), .form = kForms[i]});
    EXPECT_TRUE(bytes_of(get.Await()) == expected[i]) << i;
    get.Await() = absl::NotFoundError("");  // sent
  }
  AwaitReads();
  EXPECT_EQ(Metric("cairn_promotions_total{outcome=\"sliced\"}"), 2);
}

INSTANTIATE_TEST_SUITE_P(Recipes, PromoteRecipeTest,
                         testing::Values("raw", "exact", "kivi:8", "fp8", "kivi:4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, ':');
                           return name;
                         });

}  // namespace
}  // namespace cairn
