// SPDX-License-Identifier: Apache-2.0
// What the index tells for other members: blocks that come and go, and their runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "service/index/announce_ring.h"
#include "tests/support/store_fixture.h"
#include "tests/unit/service/store/parts_fixture.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class AnnounceTest : public PartsTest {
 protected:
  // The number of the block, its run, and whether it is stored.
  using Told = std::tuple<uint64_t, uint64_t, bool>;

  AnnounceTest() {
    parts_.records.KeepRuns();
    parts_.tiers.SetAnnouncements(&ring_);
  }
  // The fixture unlinks what is left.
  ~AnnounceTest() override { parts_.tiers.SetAnnouncements(nullptr); }
  std::vector<Told> TakeTold() {
    std::vector<Announcement> entries;
    EXPECT_TRUE(ring_.Read(&cursor_, 1000, &entries));
    std::vector<Told> told;
    for (const Announcement& one : entries) {
      EXPECT_EQ(one.name.space_id, kSpace);
      told.emplace_back(proto::RunOf(one.name.key), one.run, one.is_stored);
    }
    return told;
  }
  uint64_t Learn(uint64_t number) {
    Visits visits;
    return parts_.records.LearnRun(*Find(number), visits).value();
  }

  AnnounceRing ring_{64};
  uint64_t cursor_ = 0;
};

TEST_F(AnnounceTest, TheFirstCopyInAnyTierAndTheLast) {
  Image* image = Put(1);
  EXPECT_THAT(TakeTold(), ElementsAre(Told{1, 1, true}));
  ASSERT_TRUE(CopyTo(image, TierId::kSsd));
  parts_.tiers.Evict(Find(1), TierId::kHost, EvictionReason::kCapacity);
  parts_.records.Rest();
  parts_.records.Wake(Find(1));
  EXPECT_THAT(TakeTold(), IsEmpty());
  parts_.Unlink(Find(1), RemovalReason::kDeleted);
  EXPECT_THAT(TakeTold(), ElementsAre(Told{1, 1, false}));
}

TEST_F(AnnounceTest, ABlockInheritsTheRunOfTheBlockBefore) {
  for (uint64_t number = 1; number <= 9; ++number) Put(number);
  EXPECT_THAT(TakeTold(), ElementsAre(Told{1, 1, true}, Told{2, 2, true}, Told{3, 3, true},
                                      Told{4, 3, true}, Told{5, 5, true}, Told{6, 5, true},
                                      Told{7, 5, true}, Told{8, 5, true}, Told{9, 9, true}));
}

TEST_F(AnnounceTest, ABlockWhoseRunIsUnknownIsNotAnnounced) {
  Put(7);  // position 6, of the run that block 5 names
  Put(8);
  EXPECT_THAT(TakeTold(), IsEmpty());
  EXPECT_EQ(Learn(8), proto::kNoRun);
  Put(6);
  EXPECT_THAT(TakeTold(), IsEmpty());
  Put(5);
  EXPECT_EQ(Learn(8), 5u);
  // The blocks in between have learned it, too.
  for (const uint64_t number : {5, 6, 7, 8}) EXPECT_EQ(parts_.records.RunOf(*Find(number)), 5u);
  parts_.Unlink(Find(8), RemovalReason::kDeleted);
  EXPECT_THAT(TakeTold(), ElementsAre(Told{5, 5, true}, Told{8, 5, false}));
}

TEST_F(AnnounceTest, ARunIsKnownWhileTheNameIs) {
  Put(5);
  Put(6);
  Put(7);
  parts_.Unlink(Find(5), RemovalReason::kDeleted);
  parts_.Unlink(Find(6), RemovalReason::kDeleted);  // block 7 keeps its name, not that of block 5
  TakeTold();
  Put(6);
  EXPECT_THAT(TakeTold(), ElementsAre(Told{6, 5, true}));
  for (const uint64_t number : {6, 7}) parts_.Unlink(Find(number), RemovalReason::kDeleted);
  TakeTold();
  Put(6);  // a new name, perhaps in the same slot
  EXPECT_THAT(TakeTold(), IsEmpty());
}

TEST_F(AnnounceTest, ARunMayComeWithThePut) {
  BlockClaim claim = Claim(7);
  claim.run = 5;
  Block* block = parts_.chains.ReservePut(claim);
  Put(7);
  parts_.chains.EndReservation(block);
  Put(8);
  EXPECT_THAT(TakeTold(), ElementsAre(Told{7, 5, true}, Told{8, 5, true}));
}

TEST_F(AnnounceTest, ASearchForARunIsBounded) {
  for (uint64_t number = 34; number <= 60; ++number) Put(number);  // without block 33
  Visits visits;
  EXPECT_EQ(parts_.records.LearnRun(*Find(60), visits), proto::kNoRun);
  EXPECT_EQ(visits.count(), 28u);  // and block 33, whose name is known
  EXPECT_TRUE(visits.Take(limits::kVisitsPerHoldMax - 30));
  EXPECT_EQ(parts_.records.LearnRun(*Find(60), visits), std::nullopt);
}

TEST(AnnounceRing, WhoFallsBehindIsToldSo) {
  AnnounceRing ring(4);
  const auto append = [&](uint64_t run) { ring.Append({.name = {}, .run = run}); };
  uint64_t cursor = 0;
  std::vector<Announcement> entries;
  for (uint64_t run = 1; run <= 4; ++run) append(run);
  EXPECT_TRUE(ring.Read(&cursor, 3, &entries));
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[2].run, 3u);
  EXPECT_EQ(cursor, 3u);
  for (uint64_t run = 5; run <= 8; ++run) append(run);
  entries.clear();
  EXPECT_FALSE(ring.Read(&cursor, 3, &entries));
  EXPECT_THAT(entries, IsEmpty());
  EXPECT_EQ(cursor, ring.next());
  EXPECT_TRUE(ring.Read(&cursor, 3, &entries));
  cursor = 4;
  EXPECT_TRUE(ring.Read(&cursor, 10, &entries));
  EXPECT_EQ(entries.size(), 4u);
  cursor = 9;
  EXPECT_FALSE(ring.Read(&cursor, 3, &entries));
}

TEST(AnnounceWalk, FindsEveryBlockThatHasARun) {
  StoreFixture alone;
  EXPECT_EQ(alone.index->announcements(), nullptr);
  StoreFixture store(16_MiB, 4096, 32_MiB, {}, /*announcements_max=*/16);
  constexpr uint64_t kCount = 2'500;  // more than a hold examines
  for (uint64_t number = kCount; number > 0; --number) {
    store.PublishPage(number, number - 1, (number - 1) * 16);
  }
  // Only the first blocks of runs know their run when they come: 1, 2, 3, 5, 9, …, 2049.
  EXPECT_EQ(store.index->announcements()->next(), 13u);
  std::map<uint64_t, uint64_t> runs;
  for (int walk = 0; walk < 20 && runs.size() < kCount; ++walk) {
    std::vector<Announcement> page;
    uint64_t cursor = 0;
    while (store.index->WalkAnnounced(&cursor, &page)) {
    }
    for (const Announcement& one : page) runs[proto::RunOf(one.name.key)] = one.run;
  }
  EXPECT_EQ(runs.size(), kCount);
  for (const auto& [number, run] : runs) EXPECT_EQ(run, proto::RunFirst(number - 1) + 1) << number;
}

TEST(AnnounceRingTest, AWaitEndsWithAChangeOrWhenWoken) {
  constexpr absl::Time kNever = absl::InfiniteFuture();
  AnnounceRing ring(4);
  ring.Append({});
  ring.Await(0, kNever);  // it is there
  ring.Wake();
  ring.Await(1, kNever);  // woken before
  std::thread beside([&ring] { ring.Append({}); });
  ring.Await(1, kNever);
  beside.join();
  EXPECT_EQ(ring.next(), 2u);
  beside = std::thread([&ring] { ring.Wake(); });
  ring.Await(std::nullopt, kNever);  // changes do not end it
  beside.join();
  ring.Await(2, MonotonicNow());  // its time is over
}

}  // namespace
}  // namespace cairn
