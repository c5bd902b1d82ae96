// SPDX-License-Identifier: Apache-2.0
// Names and chains, without images where they need none.
#include "service/index/chains.h"

#include "service/limits.h"
#include "tests/unit/service/store/parts_fixture.h"

namespace cairn {
namespace {

class ChainsTest : public PartsTest {
 protected:
  bool IsOrphaned(uint64_t number) const { return parts_.chains.IsOrphaned(Name(number)); }
  void Propagate() {
    Visits visits;
    ASSERT_TRUE(parts_.chains.PropagateOrphans(visits));
  }
};

TEST_F(ChainsTest, ANameIsKnownWhileItIsNeeded) {
  Block* block = parts_.chains.ReservePut(Claim(2));
  ASSERT_NE(parts_.chains.FindKnown(Name(1)), nullptr) << "the child names it";
  EXPECT_EQ(Find(1), nullptr);
  EXPECT_EQ(Find(2), nullptr) << "nothing is published yet";
  parts_.chains.EndReservation(block);
  EXPECT_EQ(parts_.chains.FindKnown(Name(1)), nullptr);
  EXPECT_EQ(parts_.chains.FindKnown(Name(2)), nullptr);
}

TEST_F(ChainsTest, AMissingParentKnowsItsChildrenOnceItComes) {
  Put(2);
  Propagate();
  EXPECT_TRUE(IsOrphaned(2));
  Put(1);
  EXPECT_EQ(Find(1)->child_count(), 1u);
  Propagate();
  EXPECT_FALSE(IsOrphaned(2));
}

TEST_F(ChainsTest, OrphansArePropagatedInSteps) {
  for (uint64_t number = 1; number <= 5; ++number) {
    Put(number);
  }
  parts_.Unlink(Find(1), RemovalReason::kDeleted);
  EXPECT_FALSE(IsOrphaned(2)) << "not yet";
  Visits spent;
  ASSERT_TRUE(spent.Take(limits::kVisitsPerHoldMax));
  EXPECT_FALSE(parts_.chains.PropagateOrphans(spent));
  Propagate();
  for (uint64_t number = 2; number <= 5; ++number) {
    EXPECT_TRUE(IsOrphaned(number)) << number;
  }
}

TEST_F(ChainsTest, ARunningPutKeepsTheChainWhole) {
  Put(1);
  Put(2);
  Block* block = parts_.chains.ReservePut(Claim(1));
  parts_.Unlink(Find(1), RemovalReason::kDeleted);
  Propagate();
  EXPECT_FALSE(IsOrphaned(2));
  parts_.chains.EndReservation(block);
  Propagate();
  EXPECT_TRUE(IsOrphaned(2));
}

TEST_F(ChainsTest, AClaimFitsWhatIsKnown) {
  Put(1);
  Put(3);
  EXPECT_TRUE(parts_.chains.CheckPlace(Claim(2)).ok());
  BlockClaim claim = Claim(2);
  claim.first_position = 17;
  EXPECT_EQ(parts_.chains.CheckPlace(claim).code(), absl::StatusCode::kInvalidArgument)
      << "the parent ends at 16";
  claim = Claim(2);
  claim.tokens = 15;
  EXPECT_EQ(parts_.chains.CheckPlace(claim).code(), absl::StatusCode::kInvalidArgument)
      << "the child begins at 32";
  claim = Claim(2);
  claim.parent = claim.name.key;
  EXPECT_EQ(parts_.chains.CheckPlace(claim).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ChainsTest, OrderAlongAChain) {
  for (uint64_t number = 1; number <= 4; ++number) {
    Put(number);
  }
  Visits visits;
  EXPECT_TRUE(parts_.chains.IsBefore(*Find(1), *Find(4), false, visits));
  EXPECT_FALSE(parts_.chains.IsBefore(*Find(4), *Find(1), true, visits));
  Visits spent;
  ASSERT_TRUE(spent.Take(limits::kVisitsPerHoldMax));
  EXPECT_TRUE(parts_.chains.IsBefore(*Find(1), *Find(4), true, spent)) << "cannot tell";
}

TEST_F(ChainsTest, ABlockExpiresWithItsFirstImage) {
  Put(1);
  parts_.chains.SetExpiry(Find(1), 0);
  EXPECT_EQ(parts_.chains.expiring_count(), 0u);
  const auto now = static_cast<uint32_t>(absl::ToUnixSeconds(clock_.Now()));
  parts_.chains.SetExpiry(Find(1), now + 20);
  parts_.chains.SetExpiry(Find(1), now + 10);
  parts_.chains.SetExpiry(Find(1), now + 30);
  EXPECT_EQ(parts_.chains.expiring_count(), 1u);
  clock_.Advance(absl::Seconds(9));
  EXPECT_NE(parts_.chains.FindUnexpired(Name(1)), nullptr);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(parts_.chains.FindUnexpired(Name(1)), nullptr);
  EXPECT_NE(Find(1), nullptr);
  parts_.Unlink(Find(1), RemovalReason::kDeleted);
  EXPECT_EQ(parts_.chains.expiring_count(), 0u);
}

}  // namespace
}  // namespace cairn
