// SPDX-License-Identifier: Apache-2.0
// The way down: what upkeep writes into the lasting tier, in which order, and what becomes of it
// when the tier does not take it.
#include "service/upkeep/write_down.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/support/lasting_store.h"
#include "tests/support/metric_capture.h"
#include "tests/support/random.h"
#include "tests/support/side_object_bytes.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class WriteDownTest : public testing::Test {
 protected:
  static proto::BlockKey Key(uint64_t number) { return StoreFixture::Key(number); }
  absl::Status Put(uint64_t number, uint64_t parent = 0, uint64_t position = 0,
                   bool keeps_raw = false) {
    const auto whole = StoreFixture::Whole(space_);
    const auto source = StoreFixture::Source(space_, Key(number), 0, whole);
    proto::Frame frame = StoreFixture::PutFrame(space_, Key(number), whole, source);
    auto& body = std::get<proto::Put>(frame.body);
    body.parent = parent == 0 ? proto::BlockKey{} : Key(parent);
    body.first_position = position * space_.tokens_per_block();
    return store_.RunPut(frame, source, store_.session, keeps_raw).status();
  }
  // Numbers of the blocks that the index hands out, in its order. They stay handed out.
  std::vector<uint64_t> TakeAll() {
    std::vector<uint64_t> numbers;
    while (auto taken = store_.index->TakeWriteBack()) {
      uint64_t number = 0;
      std::memcpy(&number, taken->source.facts().key.data(), sizeof(number));
      numbers.push_back(number);
      taken_.push_back(*std::move(taken));
    }
    return numbers;
  }
  // As reclaim does, but for what is held.
  void DropFromTheTier() {
    const auto copies = disk_->copies;
    for (const auto& [offset, kept] : copies) {
      EXPECT_TRUE(
          store_.index->EvictCopy(TierId::kSsd, kept.image, offset, EvictionReason::kCapacity));
    }
  }
  bool IsDown(uint64_t number) const { return disk_->Find(Key(number)) != nullptr; }
  double Metric(const std::string& series) {
    MetricCapture metrics;
    store_.upkeep->Report(metrics);
    store_.index->Report(metrics);
    return metrics.Value(series);
  }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  LastingStore store_{disk_};
  SpaceEntry& space_ = store_.OpenSpace("exact");
  std::vector<WriteBackCandidate> taken_;
};

TEST_F(WriteDownTest, WritesWhatWasPutWithAllThatFindsItAgain) {
  const auto keys = store_.PutChain(space_, 3);
  EXPECT_EQ(store_.index->uncopied_count(), 3u);
  store_.upkeep->RunOnce();
  EXPECT_EQ(store_.index->uncopied_count(), 0u);
  EXPECT_EQ(store_.upkeep->unwritten_count(), 0u);
  ASSERT_EQ(disk_->copies.size(), 3u);
  uint64_t number = 0;
  for (const auto& [offset, kept] : disk_->copies) {
    EXPECT_EQ(kept.image.key, keys[number]);
    EXPECT_EQ(kept.parent, number == 0 ? proto::BlockKey{} : keys[number - 1]);
    EXPECT_EQ(kept.space, space_.fingerprint());
    EXPECT_EQ(codecs::FormatRecipe(kept.copy.recipe), "exact");
    ++number;
  }
  EXPECT_EQ(store_.index->figures(TierId::kSsd).copy_count, 3u);
  EXPECT_EQ(store_.index->figures().image_count, 3u) << "one more copy, not one more image";
  EXPECT_EQ(Metric("cairn_write_downs_total{outcome=\"written\"}"), 3);
  EXPECT_EQ(Metric("cairn_writing_down_bytes"), 0);
  store_.upkeep->RunOnce();
  EXPECT_EQ(Metric("cairn_write_downs_total{outcome=\"written\"}"), 3) << "once";
}

TEST_F(WriteDownTest, InTheOrderPublished) {
  for (const uint64_t number : {5, 3, 9, 1}) {
    ASSERT_TRUE(Put(number).ok());
  }
  EXPECT_THAT(TakeAll(), ElementsAre(5, 3, 9, 1));
  EXPECT_EQ(store_.index->uncopied_count(), 0u);
  taken_.erase(taken_.begin() + 1);  // failed: behind all others
  ASSERT_TRUE(Put(4).ok());
  EXPECT_THAT(TakeAll(), ElementsAre(3, 4));
}

TEST_F(WriteDownTest, TheFirstOfThemWakesUpkeep) {
  int wakes = 0;
  store_.index->SetWake([&] { ++wakes; });
  ASSERT_TRUE(Put(1).ok());
  EXPECT_EQ(wakes, 1);
  ASSERT_TRUE(Put(2).ok());
  EXPECT_EQ(wakes, 1) << "it is awake";
  store_.WriteAllDown();
  ASSERT_TRUE(Put(3).ok());
  EXPECT_EQ(wakes, 2);
}

TEST_F(WriteDownTest, AncestorsComeBeforeDescendantsHoweverTheyWerePut) {
  ASSERT_TRUE(Put(4, 3, 3).ok());
  ASSERT_TRUE(Put(20).ok());
  ASSERT_TRUE(Put(3, 2, 2).ok());
  ASSERT_TRUE(Put(2, 1, 1).ok());
  ASSERT_TRUE(Put(1).ok());
  EXPECT_THAT(TakeAll(), ElementsAre(1, 2, 3, 4, 20));
}

TEST_F(WriteDownTest, ADescendantWaitsForAnAncestorThatIsToBeEncoded) {
  ASSERT_TRUE(Put(1, 0, 0, /*keeps_raw=*/true).ok());
  ASSERT_TRUE(Put(2, 1, 1).ok());
  ASSERT_TRUE(Put(3, 2, 2).ok());
  ASSERT_TRUE(Put(7).ok());
  EXPECT_EQ(store_.upkeep->unwritten_count(), 4u);
  EXPECT_THAT(TakeAll(), ElementsAre(7));
  EXPECT_THAT(TakeAll(), IsEmpty());
  store_.upkeep->RunOnce();  // encodes, then writes
  EXPECT_TRUE(IsDown(1) && IsDown(2) && IsDown(3));
  for (const auto& [offset, kept] : disk_->copies) {
    EXPECT_EQ(codecs::FormatRecipe(kept.copy.recipe), "exact") << "as it is settled";
  }
}

TEST_F(WriteDownTest, WhatWaitsHoldsUpNobodyElse) {
  ASSERT_TRUE(Put(1, 0, 0, /*keeps_raw=*/true).ok());
  for (uint64_t i = 2; i <= 400; ++i) {
    ASSERT_TRUE(Put(i, i - 1, i - 1).ok());
  }
  ASSERT_TRUE(Put(1000).ok());
  EXPECT_THAT(TakeAll(), ElementsAre(1000));
}

TEST_F(WriteDownTest, NothingWaitsForAnAncestorThatIsNotThere) {
  ASSERT_TRUE(Put(2, 1, 1).ok());
  EXPECT_THAT(TakeAll(), ElementsAre(2));
}

TEST_F(WriteDownTest, WhatIsDeletedMeanwhileLeavesNothingBehind) {
  ASSERT_TRUE(Put(1).ok());
  store_.lasting.HoldCompletions(true);
  store_.upkeep->RunOnce();
  ASSERT_EQ(store_.lasting.waiting().size(), 1u);
  EXPECT_EQ(store_.upkeep->unwritten_count(), 1u);
  EXPECT_GT(Metric("cairn_writing_down_bytes"), 0);
  store_.index->Delete(space_.id(), {Key(1)});
  store_.lasting.Complete(store_.lasting.waiting()[0], absl::OkStatus());
  EXPECT_TRUE(disk_->copies.empty());
  EXPECT_EQ(store_.lasting.used_bytes(), 0u);
  EXPECT_EQ(Metric("cairn_write_downs_total{outcome=\"gone\"}"), 1);
  EXPECT_EQ(store_.upkeep->unwritten_count(), 0u);
  store_.lasting.HoldCompletions(false);
}

TEST_F(WriteDownTest, BytesOnTheirWayAreBounded) {
  store_.PutChain(space_, 600);
  store_.lasting.HoldCompletions(true);
  for (int round = 0; round < 20; ++round) {
    store_.upkeep->RunOnce();
  }
  const double bound = 16_MiB / limits::kWriteDownShareOfHost;
  const double image = 12'000;
  EXPECT_GE(Metric("cairn_writing_down_bytes"), bound);
  EXPECT_LE(Metric("cairn_writing_down_bytes"), bound + image);
  const size_t under_way = store_.lasting.waiting().size();
  store_.lasting.Complete(store_.lasting.waiting()[0], absl::OkStatus());
  store_.upkeep->RunOnce();
  EXPECT_EQ(store_.lasting.waiting().size(), under_way) << "one more for the one that ended";
  store_.lasting.HoldCompletions(false);
  for (const TransferId id : store_.lasting.waiting()) {
    store_.lasting.Complete(id, absl::OkStatus());
  }
  store_.WriteAllDown();
  EXPECT_EQ(disk_->copies.size(), 600u);
}

TEST_F(WriteDownTest, ATierThatIsOutRestsAndGetsItLater) {
  store_.PutChain(space_, 3);
  store_.lasting.SetOut(true);
  store_.upkeep->RunOnce();
  store_.upkeep->RunOnce();
  EXPECT_EQ(Metric("cairn_write_downs_total{outcome=\"refused\"}"), 1) << "it rests";
  EXPECT_EQ(store_.index->uncopied_count(), 3u);
  absl::Duration rest = absl::Milliseconds(100);
  for (int retries = 1; retries <= 4; ++retries) {
    store_.clock.Advance(rest - absl::Milliseconds(1));
    store_.upkeep->RunOnce();
    EXPECT_EQ(Metric("cairn_write_downs_total{outcome=\"refused\"}"), retries);
    store_.clock.Advance(absl::Milliseconds(1));
    store_.upkeep->RunOnce();
    EXPECT_EQ(Metric("cairn_write_downs_total{outcome=\"refused\"}"), retries + 1);
    rest *= 2;
  }
  store_.lasting.SetOut(false);
  store_.clock.Advance(absl::Seconds(10));
  store_.upkeep->RunOnce();
  EXPECT_EQ(disk_->copies.size(), 3u);
}

TEST_F(WriteDownTest, AWriteThatFailsIsTriedAgain) {
  ASSERT_TRUE(Put(1).ok());
  store_.lasting.HoldCompletions(true);
  store_.upkeep->RunOnce();
  store_.lasting.Complete(store_.lasting.waiting()[0], absl::DataLossError("EIO"));
  store_.lasting.HoldCompletions(false);
  EXPECT_EQ(Metric("cairn_write_downs_total{outcome=\"failed\"}"), 1);
  EXPECT_EQ(store_.lasting.used_bytes(), 0u) << "its place is free";
  EXPECT_EQ(store_.index->uncopied_count(), 1u);
  store_.upkeep->RunOnce();
  EXPECT_FALSE(IsDown(1)) << "not at once";
  store_.clock.Advance(absl::Milliseconds(100));
  store_.upkeep->RunOnce();
  EXPECT_TRUE(IsDown(1));
}

TEST_F(WriteDownTest, StopWaitsForWritesUnderWay) {
  ASSERT_TRUE(Put(1).ok());
  store_.lasting.HoldCompletions(true);
  store_.upkeep->RunOnce();
  std::atomic<bool> is_stopped{false};
  std::thread stopping([&] {
    store_.upkeep->Stop();
    is_stopped = true;
  });
  EXPECT_FALSE(is_stopped);
  store_.lasting.Complete(store_.lasting.waiting()[0], absl::OkStatus());
  stopping.join();
  EXPECT_TRUE(IsDown(1));
  ASSERT_TRUE(Put(2).ok());
  store_.upkeep->RunOnce();
  EXPECT_TRUE(store_.lasting.waiting().empty()) << "no new ones";
}

TEST_F(WriteDownTest, EvictionOfWhatIsThereToo) {
  ASSERT_TRUE(Put(1).ok());
  ASSERT_GT(store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_EQ(Metric("cairn_dirty_evictions_total{tier=\"host\"}"), 1);
  EXPECT_GT(Metric("cairn_dirty_evicted_bytes_total{tier=\"host\"}"), 0);
  ASSERT_TRUE(Put(2).ok());
  store_.WriteAllDown();
  ASSERT_GT(store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_EQ(Metric("cairn_dirty_evictions_total{tier=\"host\"}"), 1) << "it is clean";
  EXPECT_EQ(store_.Fetch(space_, Key(2)),
            StoreFixture::Source(space_, Key(2), 0, StoreFixture::Whole(space_)));
  EXPECT_EQ(store_.index->uncopied_count(), 0u) << "what was read up is there still";
}

TEST_F(WriteDownTest, AChainMayBeLongerThanTheHostTier) {
  const uint64_t count = 2 * 16_MiB / 12'000;
  for (uint64_t i = 1; i <= count; ++i) {
    ASSERT_TRUE(Put(i, i - 1, i - 1).ok()) << i;
    store_.upkeep->RunOnce();
  }
  store_.WriteAllDown();
  EXPECT_EQ(disk_->copies.size(), count);
  EXPECT_EQ(Metric("cairn_dirty_evictions_total{tier=\"host\"}"), 0);
  std::vector<proto::BlockKey> keys;
  for (uint64_t i = 1; i <= count; ++i) {
    keys.push_back(Key(i));
  }
  const auto match = store_.index->Match(store_.Query(space_, keys));
  ASSERT_TRUE(match.ok());
  EXPECT_EQ(match->blocks.size(), count);
}

TEST_F(WriteDownTest, WhatTheTierLetGoComesBackIfItWasUsed) {
  ASSERT_TRUE(Put(1).ok());
  ASSERT_TRUE(Put(2).ok());
  store_.WriteAllDown();
  store_.index->Lookup({space_.id(), Key(2)}, 0, StoreFixture::Whole(space_));
  DropFromTheTier();
  EXPECT_THAT(TakeAll(), ElementsAre(2)) << "else it would go round for ever";
  // A child brings it back: it is to have its prefix there.
  taken_.clear();
  ASSERT_TRUE(Put(3, 1, 1).ok());
  EXPECT_THAT(TakeAll(), ElementsAre(2, 1, 3));
}

TEST_F(WriteDownTest, WhatTheTierLetGoComesBackOnceItIsUsed) {
  store_.PutChain(space_, 2);
  store_.WriteAllDown();
  DropFromTheTier();
  store_.upkeep->RunOnce();
  EXPECT_FALSE(IsDown(1)) << "nobody has used it";
  for (int i = 0; i < 100; ++i) {
    const BlockName name = {space_.id(), Key(1)};
    EXPECT_FALSE(store_.index->Lookup(name, 0, StoreFixture::Whole(space_)).empty());
  }
  EXPECT_EQ(store_.index->uncopied_count(), 1u) << "the others are not used yet";
  store_.upkeep->RunOnce();
  EXPECT_TRUE(IsDown(1));
}

TEST_F(WriteDownTest, AMatchBringsBackAChainThatTheTierLetGo) {
  const auto keys = store_.PutChain(space_, 3);
  store_.WriteAllDown();
  DropFromTheTier();
  ASSERT_TRUE(store_.index->Match(store_.Query(space_, keys)).ok());
  EXPECT_EQ(store_.index->uncopied_count(), 3u);
  store_.upkeep->RunOnce();
  EXPECT_EQ(disk_->copies.size(), 3u);
}

TEST_F(WriteDownTest, NothingIsPendingWhoseHostCopyIsGone) {
  ASSERT_TRUE(Put(1, 0, 0, /*keeps_raw=*/true).ok());
  {
    const CopyPins pins = store_.index->TakePending(1);
    ASSERT_EQ(pins.size(), 1u);
    store_.WriteAllDown();  // as it was put
    store_.index->PutBackPending(pins[0]);
    EXPECT_EQ(store_.index->pending_count(), 1u);
  }
  ASSERT_GT(store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_EQ(store_.index->pending_count(), 0u) << "upkeep would look for it for ever";
  EXPECT_TRUE(store_.index->TakePending(1).empty());
}

TEST_F(WriteDownTest, WhatTheTierNeverTakesIsNotWaitedFor) {
  auto identity = StoreFixture::Identity();
  identity.model = "large";
  identity.tokens_per_block = 1024;
  SpaceEntry& space = store_.OpenSpace("raw", identity);
  store_.PutChain(space, 2);
  EXPECT_EQ(store_.upkeep->unwritten_count(), 0u);
  const auto child = store_.PutSource(space_, Key(9), StoreFixture::Whole(space_));
  ASSERT_TRUE(child.ok());
  EXPECT_THAT(TakeAll(), ElementsAre(9));
}

TEST_F(WriteDownTest, RecordsNameWhatIsCurrentAndWhatTheImageIsCodedWith) {
  const codecs::ProfileShape shape = {.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 32};
  auto identity = StoreFixture::Identity();
  identity.model = "profiled";
  SpaceEntry& space = store_.OpenSpace("cairn:2.3", identity);
  const auto first = SideObjectBytes(proto::SideObjectKind::kProfile, 1, shape);
  const auto second = SideObjectBytes(proto::SideObjectKind::kProfile, 2, shape);
  ASSERT_TRUE(space.coding().Install(0, proto::SideObjectKind::kProfile, first).ok());
  ASSERT_TRUE(store_.PutSource(space, Key(1), StoreFixture::Whole(space)).ok());
  ASSERT_TRUE(space.coding().Install(0, proto::SideObjectKind::kProfile, second).ok());
  store_.WriteAllDown();
  EXPECT_EQ(disk_->side_objects.size(), 2u);
  EXPECT_EQ(disk_->copies.begin()->second.side_object, proto::SideObjectId(first));
  EXPECT_EQ(disk_->spaces.at(space.fingerprint()).current[0].id, proto::SideObjectId(second));
}

// Puts in any order, deletions, evictions and failures, while writes end when they like.
TEST_F(WriteDownTest, InTheEndTheTierHasWhatMemoryHas) {
  std::mt19937_64 random = SeededRandom();
  const auto below = [&](uint64_t bound) { return random() % bound; };
  constexpr uint64_t kChains = 8, kLength = 40;
  store_.lasting.HoldCompletions(true);
  for (int step = 0; step < 4000; ++step) {
    const uint64_t chain = below(kChains), place = below(kLength);
    const uint64_t number = 1 + chain * kLength + place;
    switch (below(8)) {
      case 0:
      case 1:
      case 2: {
        const absl::Status put =
            Put(number, place == 0 ? 0 : number - 1, place, /*keeps_raw=*/below(4) == 0);
        ASSERT_TRUE(put.ok()) << put;
        break;
      }
      case 3:
        if (below(4) == 0) {
          store_.index->Delete(space_.id(), {Key(number)});
        }
        break;
      case 4:
        if (below(4) == 0) {
          store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity);
        }
        break;
      case 5:
        store_.clock.Advance(absl::Milliseconds(below(400)));
        store_.upkeep->RunOnce();
        break;
      default: {
        const auto waiting = store_.lasting.waiting();
        if (!waiting.empty()) {
          store_.lasting.Complete(waiting[below(waiting.size())],
                                  below(20) == 0 ? absl::DataLossError("EIO") : absl::OkStatus());
        }
      }
    }
  }
  store_.lasting.HoldCompletions(false);
  for (const TransferId id : store_.lasting.waiting()) {
    store_.lasting.Complete(id, absl::OkStatus());
  }
  for (int round = 0; round < 100 && store_.upkeep->unwritten_count() > 0; ++round) {
    store_.clock.Advance(absl::Seconds(10));
    store_.upkeep->RunOnce();
  }
  EXPECT_EQ(store_.upkeep->unwritten_count(), 0u);
  EXPECT_EQ(store_.index->figures(TierId::kSsd).copy_count, disk_->copies.size());
  EXPECT_EQ(store_.index->figures().image_count, disk_->copies.size());
  uint64_t cursor = 0;
  CopyPins pins;
  uint64_t in_memory = 0;
  for (bool has_more = true; has_more;) {
    has_more = store_.index->Walk(space_.id(), &cursor, &pins);
    in_memory += pins.size();
  }
  EXPECT_GT(in_memory, 50u);
  EXPECT_LE(in_memory, disk_->copies.size());
}

}  // namespace
}  // namespace cairn
