// SPDX-License-Identifier: Apache-2.0
// A match in many holds of the index, and what others do in between.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "service/index/event_log.h"
#include "service/index/evictions.h"
#include "service/index/index_parts.h"
#include "service/index/match.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

constexpr uint16_t kSlices = codecs::kImagesPerBlockMax;
constexpr codecs::Slice kWhole = {0, 1, 0, kSlices};
constexpr uint64_t kUnlimited = UINT64_MAX;

// The parts of an index, without its lock: the test is the only thread.
class MatchScanTest : public ::testing::Test {
 protected:
  MatchScanTest() {
    auto made =
        HostTier::Make({.capacity_bytes = 64_MiB, .staging_bytes = 1_MiB, .fault_in = false});
    CAIRN_CHECK_OK(made);
    host_ = *std::move(made);
    CopyTier* const tiers[] = {host_.get()};
    parts_ =
        std::make_unique<IndexParts>(tiers, 4096, UINT64_MAX, 64, 64, RealClock::Get(), events_);
  }
  ~MatchScanTest() override {
    for (uint32_t slot = 0; slot < parts_->records.slot_count(); ++slot) {
      if (Block* block = parts_->records.LinkedAt(slot); block != nullptr) {
        parts_->Unlink(block, RemovalReason::kDeleted);
      }
    }
    EXPECT_EQ(parts_->tiers.figures(TierId::kHost).pinned_bytes, 0u) << "every pin is given back";
    EXPECT_EQ(host_->used_bytes(), 0u);
  }

  void Put(uint64_t block, uint16_t group = 0, const codecs::Slice& slice = kWhole) {
    Arena::Refusal refusal;
    NewImage image;
    image.claim.name = {1, StoreFixture::Key(block)};
    image.claim.tokens = 16;
    image.claim.group = group;
    image.claim.slice = slice;
    image.copy.extent = host_->arena().Allocate(4_KiB, Use::kPlaced, &refusal);
    Block* reserved = parts_->chains.ReservePut(image.claim);
    parts_->Add(reserved, std::move(image), absl::UnixEpoch());
    parts_->chains.EndReservation(reserved);
  }
  // Blocks 1 to `count`, each in 64 slices: 65 visits.
  void PutSliced(uint64_t count) {
    for (uint64_t block = 1; block <= count; ++block) {
      for (uint16_t head = 0; head < kSlices; ++head) {
        Put(block, 0, {0, 1, head, 1});
      }
    }
  }
  void Delete(uint64_t block) {
    parts_->Unlink(parts_->chains.Find({1, StoreFixture::Key(block)}), RemovalReason::kDeleted);
  }
  static MatchQuery Query(uint64_t count, bool wants_lease = true) {
    MatchQuery query;
    query.space_id = 1;
    query.tokens_per_block = 16;
    for (uint64_t i = 1; i <= count; ++i) {
      query.keys.push_back(StoreFixture::Key(i));
    }
    query.wanted = {{.group = 0, .slice = kWhole}};
    query.wants_lease = wants_lease;
    return query;
  }

  // One hold; true: over.
  bool Look(MatchScan& scan, uint64_t lease_bytes_free = kUnlimited) {
    Visits visits;
    scan.Reserve();
    const bool is_over = scan.Look(*parts_, lease_bytes_free, visits);
    EXPECT_LE(visits.count(), limits::kVisitsPerHoldMax);
    return is_over;
  }
  template <typename Step>
  int Holds(Step step) {
    for (int holds = 1;; ++holds) {
      Visits visits;
      const bool is_over = step(visits);
      EXPECT_LE(visits.count(), limits::kVisitsPerHoldMax);
      if (is_over) {
        return holds;
      }
    }
  }
  int LeaseAll(MatchScan& scan, uint64_t lease_bytes_max = kUnlimited) {
    return Holds([&](Visits& visits) { return scan.Lease(*parts_, lease_bytes_max, visits); });
  }
  // The images that stay leased.
  std::vector<Image*> ReleasePins(MatchScan& scan) {
    Holds([&](Visits& visits) { return scan.ReleasePins(*parts_, visits); });
    Holds([&](Visits& visits) { return scan.Touch(*parts_, absl::UnixEpoch(), visits); });
    return scan.TakeLeased();
  }
  void Unlease(const std::vector<Image*>& images) {
    for (Image* image : images) {
      parts_->tiers.LeaseUnpin(image);
    }
  }

  std::unique_ptr<HostTier> host_;
  EventLog events_{RealClock::Get()};
  std::unique_ptr<IndexParts> parts_;
};

TEST_F(MatchScanTest, AHoldVisitsAThousandImagesAtMost) {
  PutSliced(40);
  const MatchQuery query = Query(40);
  MatchScan scan(query);
  int holds = 1;
  while (!Look(scan)) {
    ++holds;
  }
  EXPECT_EQ(holds, 3) << "15 blocks a hold";
  scan.Plan(kUnlimited);
  EXPECT_EQ(scan.block_count(), 40u);
  EXPECT_EQ(LeaseAll(scan), 3);
  ASSERT_TRUE(scan.is_leased());
  const std::vector<Image*> leased = ReleasePins(scan);
  EXPECT_EQ(leased.size(), 40u * kSlices);
  EXPECT_EQ(parts_->tiers.figures(TierId::kHost).pinned_bytes, 40u * kSlices * 4_KiB);
  EXPECT_EQ(parts_->tiers.leased_bytes(), parts_->tiers.figures(TierId::kHost).pinned_bytes);
  Unlease(leased);
}

TEST_F(MatchScanTest, WhatWasFoundIsPinnedBeforeTheIndexIsLetGo) {
  PutSliced(40);
  const MatchQuery query = Query(40);
  MatchScan scan(query);
  ASSERT_FALSE(Look(scan));
  EXPECT_EQ(parts_->tiers.figures(TierId::kHost).pinned_bytes, 15u * kSlices * 4_KiB);
  Evictions evictions(*parts_, 4096, uint64_t{4096} * kSlices);
  Eviction eviction;
  for (uint64_t freed = 1; freed > 0;) {
    Visits visits;
    freed = evictions.EvictOldest(eviction, visits);
  }
  EXPECT_EQ(parts_->tiers.figures().block_count, 15u) << "evicted is only what was not found yet";
  EXPECT_TRUE(Look(scan));
  scan.Plan(kUnlimited);
  EXPECT_EQ(scan.block_count(), 15u);
  LeaseAll(scan);
  Unlease(ReleasePins(scan));
}

TEST_F(MatchScanTest, AMatchWithoutLeasePinsNothing) {
  PutSliced(20);
  const MatchQuery query = Query(20, /*wants_lease=*/false);
  MatchScan scan(query);
  EXPECT_FALSE(Look(scan));
  EXPECT_EQ(parts_->tiers.figures(TierId::kHost).pinned_bytes, 0u);
  EXPECT_TRUE(Look(scan));
  Delete(20);
  Put(21);  // in the place of block 20 in the slab, maybe
  scan.Plan(0);
  EXPECT_EQ(scan.block_count(), 20u);
  EXPECT_TRUE(ReleasePins(scan).empty());
}

TEST_F(MatchScanTest, WhatIsDeletedBeforeItIsLeasedEndsThePrefix) {
  PutSliced(40);
  const MatchQuery query = Query(40);
  MatchScan scan(query);
  ASSERT_FALSE(Look(scan));
  Delete(9);   // found already
  Delete(30);  // not yet
  while (!Look(scan)) {
  }
  scan.Plan(kUnlimited);
  EXPECT_EQ(scan.block_count(), 29u);
  LeaseAll(scan);
  EXPECT_FALSE(scan.is_leased());
  scan.Plan(kUnlimited);
  EXPECT_EQ(scan.block_count(), 8u);
  EXPECT_FALSE(scan.Answer().is_shortened_by_pins) << "it is gone, not leased away";
  LeaseAll(scan);
  EXPECT_TRUE(scan.is_leased());
  const std::vector<Image*> leased = ReleasePins(scan);
  EXPECT_EQ(leased.size(), 8u * kSlices);
  EXPECT_EQ(parts_->tiers.leased_bytes(), 8u * kSlices * 4_KiB);
  Unlease(leased);
}

TEST_F(MatchScanTest, LeasesTakenMeanwhileShortenThePrefix) {
  constexpr uint64_t kBlockBytes = kSlices * 4_KiB;
  PutSliced(30);
  const MatchQuery query = Query(20);
  MatchScan scan(query);
  while (!Look(scan, 22 * kBlockBytes)) {
  }
  scan.Plan(22 * kBlockBytes);
  EXPECT_EQ(scan.block_count(), 20u);
  // Another match leases ten blocks.
  std::vector<Image*> rival;
  for (uint64_t block = 21; block <= 30; ++block) {
    for (const ImageRef& ref :
         parts_->records.Wake(parts_->chains.Find({1, StoreFixture::Key(block)}))) {
      parts_->tiers.LeasePin(ref.image);
      rival.push_back(ref.image);
    }
  }
  LeaseAll(scan, 22 * kBlockBytes);
  EXPECT_FALSE(scan.is_leased());
  EXPECT_LE(parts_->tiers.leased_bytes(), 22 * kBlockBytes);
  scan.Plan(scan.leased_bytes());
  EXPECT_EQ(scan.block_count(), 12u);
  EXPECT_TRUE(scan.Answer().is_shortened_by_pins);
  LeaseAll(scan, 22 * kBlockBytes);
  EXPECT_TRUE(scan.is_leased());
  const std::vector<Image*> leased = ReleasePins(scan);
  EXPECT_EQ(leased.size(), 12u * kSlices);
  EXPECT_EQ(parts_->tiers.leased_bytes(), 22 * kBlockBytes);
  Unlease(leased);
  Unlease(rival);
}

TEST_F(MatchScanTest, PastTheLeaseLimitItStopsLooking) {
  PutSliced(40);
  const MatchQuery query = Query(40);
  MatchScan scan(query);
  EXPECT_TRUE(Look(scan, 3 * kSlices * 4_KiB));
  EXPECT_EQ(parts_->tiers.figures(TierId::kHost).pinned_bytes, 3 * kSlices * 4_KiB)
      << "no more than may be leased";
  scan.Plan(3 * kSlices * 4_KiB);
  EXPECT_EQ(scan.block_count(), 3u);
  EXPECT_TRUE(scan.Answer().is_shortened_by_pins);
  LeaseAll(scan);
  Unlease(ReleasePins(scan));
}

// Group 1 is needed in the last two blocks, group 2 in the last: a state.
TEST_F(MatchScanTest, HybridRulesHoldAcrossHolds) {
  PutSliced(40);
  MatchQuery query = Query(40);
  query.wanted.push_back(
      {.group = 1, .slice = kWhole, .rule = WantedGroup::Rule::kWindow, .window_blocks = 2});
  query.wanted.push_back({.group = 2, .slice = kWhole, .rule = WantedGroup::Rule::kLast});
  for (const uint64_t block : {10, 11, 14, 15, 30, 31}) {
    Put(block, 1);
  }
  for (const uint64_t block : {11, 15, 31}) {
    Put(block, 2);
  }
  MatchScan scan(query);
  while (!Look(scan)) {
  }
  scan.Plan(kUnlimited);
  EXPECT_EQ(scan.block_count(), 31u);
  Delete(30);
  LeaseAll(scan);
  EXPECT_FALSE(scan.is_leased());
  scan.Plan(kUnlimited);
  EXPECT_EQ(scan.block_count(), 15u);
  // Of the window and the states, only what this prefix needs.
  LeaseAll(scan);
  EXPECT_TRUE(scan.is_leased());
  const std::vector<Image*> leased = ReleasePins(scan);
  EXPECT_EQ(leased.size(), 15u * kSlices + 2 + 1);
  EXPECT_EQ(parts_->tiers.figures(TierId::kHost).pinned_bytes, leased.size() * 4_KiB);
  EXPECT_EQ(scan.Answer().blocks[14].image_bytes, (kSlices + 2) * 4_KiB);
  Unlease(leased);
}

TEST_F(MatchScanTest, AbandonedItLeavesNothing) {
  PutSliced(3);
  const MatchQuery query = Query(3);
  MatchScan scan(query);
  Look(scan);
  scan.Plan(kUnlimited);
  LeaseAll(scan);
  scan.Abandon();
  EXPECT_TRUE(ReleasePins(scan).empty());
  EXPECT_EQ(scan.Answer().blocks.size(), 0u);
  EXPECT_EQ(parts_->tiers.leased_bytes(), 0u);
}

TEST_F(MatchScanTest, WhatIsMissingIsLookedForInHoldsToo) {
  PutSliced(40);
  const MatchQuery query = Query(40);
  const auto missing = [&](int* holds) {
    MissingScan scan(query);
    *holds = Holds([&](Visits& visits) { return scan.Look(*parts_, visits); });
    return scan.missing();
  };
  int holds = 0;
  EXPECT_EQ(missing(&holds), std::nullopt);
  EXPECT_EQ(holds, 3);
  Delete(2);
  Delete(40);
  EXPECT_EQ(missing(&holds), 39u);
  EXPECT_EQ(holds, 1);
  Put(40);
  EXPECT_EQ(missing(&holds), 1u);
}

}  // namespace
}  // namespace cairn
