// SPDX-License-Identifier: Apache-2.0
// Copies in tiers: which are held, leased and counted, and in which order they would go.
#include "service/index/tier_set.h"

#include "tests/unit/service/store/parts_fixture.h"

namespace cairn {
namespace {

class TierSetTest : public PartsTest {
 protected:
  static Copy& In(const Image* image, TierId tier) { return *image->copies[IndexOf(tier)]; }
  const CopyFigures& Host() const { return parts_.tiers.figures(TierId::kHost); }
  Block* OldestLeaf(size_t order) {
    Visits visits;
    return parts_.tiers.order(TierId::kHost, order).recency->Oldest(visits);
  }
};

TEST_F(TierSetTest, APinnedImageHoldsItsLastCopy) {
  Image* image = Put(1);
  parts_.tiers.Pin(image);
  EXPECT_TRUE(In(image, TierId::kHost).is_held);
  ASSERT_TRUE(CopyTo(image, TierId::kSsd));
  EXPECT_FALSE(In(image, TierId::kHost).is_held) << "with two copies neither is the last";
  EXPECT_FALSE(In(image, TierId::kSsd).is_held);
  EXPECT_EQ(Host().pinned_bytes, 0u);
  Lose(image, TierId::kHost);
  EXPECT_TRUE(In(image, TierId::kSsd).is_held);
  parts_.tiers.Unpin(image);
  EXPECT_FALSE(In(image, TierId::kSsd).is_held);
}

TEST_F(TierSetTest, APutOfAChildHoldsTheLastCopiesOfItsParent) {
  const Image* image = Put(1);
  Block* child = parts_.chains.ReservePut(Claim(2));
  EXPECT_TRUE(In(image, TierId::kHost).is_held);
  EXPECT_TRUE(parts_.tiers.is_all_held(TierId::kHost));
  parts_.chains.EndReservation(child);
  EXPECT_FALSE(In(image, TierId::kHost).is_held);
}

TEST_F(TierSetTest, APinnedCopyStaysUntilItsLastUnpin) {
  Image* image = Put(1);
  Copy* copy = &In(image, TierId::kHost);
  parts_.tiers.Pin(copy);
  parts_.Unlink(Find(1), RemovalReason::kDeleted);
  EXPECT_FALSE(copy->is_linked());
  EXPECT_EQ(Host().copy_count, 0u);
  EXPECT_EQ(Host().pinned_bytes, kRoundedBytes);
  EXPECT_EQ(host_.used_bytes(), kRoundedBytes);
  parts_.tiers.Unpin(copy);
  EXPECT_EQ(Host().pinned_bytes, 0u);
  EXPECT_EQ(host_.used_bytes(), 0u);
}

TEST_F(TierSetTest, ALeaseCountsTheCopiesThatComeMeanwhile) {
  Image* image = Put(1);
  parts_.tiers.LeasePin(image);
  EXPECT_EQ(parts_.tiers.leased_bytes(), kRoundedBytes);
  parts_.tiers.Replace(&In(image, TierId::kHost), Bytes(TierId::kHost, 2 * kRoundedBytes));
  EXPECT_EQ(parts_.tiers.leased_bytes(), 2 * kRoundedBytes);
  ASSERT_TRUE(CopyTo(image, TierId::kSsd));
  EXPECT_EQ(parts_.tiers.figures(TierId::kSsd).leased_bytes, kRoundedBytes);
  parts_.tiers.LeaseUnpin(image);
  EXPECT_EQ(parts_.tiers.leased_bytes(), 0u);
  EXPECT_EQ(parts_.tiers.figures(TierId::kSsd).leased_bytes, 0u);
}

TEST_F(TierSetTest, OnlyLeavesAreInAnOrder) {
  Put(1);
  EXPECT_EQ(OldestLeaf(TierSet::kRanked + kPlainRank), Find(1));
  Put(2);
  EXPECT_EQ(OldestLeaf(TierSet::kRanked + kPlainRank), Find(2));
  EXPECT_EQ(Find(1)->in(IndexOf(TierId::kHost)).queue_index, BlockInTier::kNotQueued);
  parts_.Unlink(Find(2), RemovalReason::kDeleted);
  EXPECT_EQ(OldestLeaf(TierSet::kRanked + kPlainRank), Find(1));
}

TEST_F(TierSetTest, OrphansAreInAnOrderOfTheirOwn) {
  Put(1);
  Put(2);
  parts_.Unlink(Find(1), RemovalReason::kDeleted);
  Visits visits;
  ASSERT_TRUE(parts_.chains.PropagateOrphans(visits));
  EXPECT_EQ(OldestLeaf(TierSet::kRanked + kPlainRank), nullptr);
  EXPECT_EQ(OldestLeaf(TierSet::kOrphaned), Find(2));
}

TEST_F(TierSetTest, TheLastCopyTakesImageAndBlockAlong) {
  Image* image = Put(1);
  ASSERT_TRUE(CopyTo(image, TierId::kSsd));
  Lose(image, TierId::kHost);
  EXPECT_NE(Find(1), nullptr);
  EXPECT_EQ(Host().lost_count, 1u);
  Lose(image, TierId::kSsd);
  EXPECT_EQ(Find(1), nullptr);
  EXPECT_EQ(parts_.tiers.figures().image_count, 0u);
  EXPECT_EQ(parts_.tiers.figures().block_count, 0u);
  EXPECT_EQ(parts_.tiers.figures(kSpace).source_bytes, 0u);
}

TEST_F(TierSetTest, ATierThatIsOutGetsNoCopies) {
  Image* image = Put(1);
  ASSERT_TRUE(parts_.tiers.BeginCopy(image, TierId::kSsd));
  EXPECT_FALSE(parts_.tiers.BeginCopy(image, TierId::kSsd)) << "it gets one already";
  parts_.tiers.SetOut(TierId::kSsd, true);
  EXPECT_FALSE(parts_.tiers.FinishCopy(image, TierId::kSsd, Bytes(TierId::kSsd)));
  EXPECT_FALSE(parts_.tiers.BeginCopy(image, TierId::kSsd));
  parts_.tiers.SetOut(TierId::kSsd, false);
  EXPECT_TRUE(CopyTo(image, TierId::kSsd));
}

}  // namespace
}  // namespace cairn
