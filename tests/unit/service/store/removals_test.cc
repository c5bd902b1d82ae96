// SPDX-License-Identifier: Apache-2.0
// Why blocks are not stored: the record of removals, and the index that fills it.
#include "service/index/removals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/lasting_store.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

BlockName RemovedName(uint64_t number) { return {1, StoreFixture::Key(number)}; }

TEST(RemovalsTest, ARingKeepsTheLast) {
  Removals removals(3, 100);
  EXPECT_TRUE(removals.is_complete());
  EXPECT_EQ(removals.since_unix_s(), 100u);
  for (uint32_t i = 0; i < 3; ++i) removals.Add(RemovedName(i), RemovalReason::kEvicted, 200 + i);
  EXPECT_TRUE(removals.is_complete());
  removals.Add(RemovedName(3), RemovalReason::kDeleted, 300);
  EXPECT_FALSE(removals.is_complete());
  EXPECT_EQ(removals.since_unix_s(), 200u) << "when the forgotten one was removed";
  EXPECT_FALSE(removals.Find(RemovedName(0)).has_value());
  ASSERT_TRUE(removals.Find(RemovedName(3)).has_value());
  EXPECT_EQ(removals.Find(RemovedName(3))->reason, RemovalReason::kDeleted);
  EXPECT_EQ(removals.Find(RemovedName(3))->at_unix_s, 300u);
  EXPECT_EQ(removals.bytes(), 3 * limits::kRemovalBytes);
}

TEST(RemovalsTest, TheLastReasonOfABlockCounts) {
  Removals removals(8, 0);
  removals.Add(RemovedName(1), RemovalReason::kEvicted, 1);
  removals.Add(RemovedName(2), RemovalReason::kEvicted, 2);
  removals.Add(RemovedName(1), RemovalReason::kRefused, 3);
  EXPECT_EQ(removals.Find(RemovedName(1))->reason, RemovalReason::kRefused);
}

// Against a plain list of the last entries.
TEST(RemovalsTest, RandomRemovals) {
  std::mt19937_64 random = SeededRandom(1);
  for (const uint32_t capacity : {1U, 2U, 7U, 64U}) {
    Removals removals(capacity, 0);
    std::vector<std::pair<uint64_t, RemovalReason>> all;
    for (uint32_t i = 0; i < 2000; ++i) {
      const uint64_t number = random() % (2 * capacity + 1);
      const auto reason = static_cast<RemovalReason>(random() % 7);
      removals.Add(RemovedName(number), reason, i);
      all.emplace_back(number, reason);
      std::map<uint64_t, RemovalReason> kept;
      for (size_t k = all.size() - std::min<size_t>(all.size(), capacity); k < all.size(); ++k) {
        kept[all[k].first] = all[k].second;
      }
      for (uint64_t n = 0; n <= 2 * capacity; ++n) {
        const auto found = removals.Find(RemovedName(n));
        ASSERT_EQ(found.has_value(), kept.contains(n));
        ASSERT_TRUE(!found.has_value() || found->reason == kept[n]);
      }
    }
  }
}

class ExplainTest : public testing::Test {
 protected:
  BlockFate Fate(const proto::BlockKey& key) {
    const Explanation all =
        store_.index->Explain(space_.id(), {&key, 1}, {space_.whole().data(), 1});
    return all.blocks.front();
  }
  RemovalReason Reason(const proto::BlockKey& key) {
    const BlockFate fate = Fate(key);
    CAIRN_CHECK(!fate.is_stored && fate.removal.has_value());
    return fate.removal->reason;
  }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  LastingStore store_{disk_};
  SpaceEntry& space_ = store_.OpenSpace("raw");
};

TEST_F(ExplainTest, EachTierOfABlock) {
  const auto keys = store_.PutChain(space_, 2);
  EXPECT_THAT(Fate(keys[0]).tiers, testing::ElementsAre(TierId::kHost));
  store_.WriteAllDown();
  EXPECT_THAT(Fate(keys[0]).tiers, testing::ElementsAre(TierId::kHost, TierId::kSsd));
  EXPECT_TRUE(Fate(keys[1]).is_stored);
  EXPECT_FALSE(Fate(keys[1]).missing_group.has_value());
}

TEST_F(ExplainTest, AHalfIsIncomplete) {
  ASSERT_TRUE(store_.PutSource(space_, StoreFixture::Key(9), kLeft).ok());
  const BlockFate fate = Fate(StoreFixture::Key(9));
  EXPECT_TRUE(fate.is_stored);
  EXPECT_EQ(fate.missing_group, 0);
}

TEST_F(ExplainTest, NeverPut) {
  const BlockFate fate = Fate(StoreFixture::Key(77));
  EXPECT_FALSE(fate.is_stored || fate.removal.has_value());
  EXPECT_TRUE(store_.index->Explain(space_.id(), {}, {}).has_all_removals);
}

TEST_F(ExplainTest, EachReason) {
  const auto keys = store_.PutChain(space_, 4);
  store_.index->Delete(space_.id(), {keys[3]});
  EXPECT_EQ(Reason(keys[3]), RemovalReason::kDeleted);
  while (store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity) > 0) {
  }
  EXPECT_EQ(Reason(keys[2]), RemovalReason::kEvicted);
  store_.PutChain(space_, 3);
  EXPECT_TRUE(Fate(keys[2]).is_stored) << "it is there again";
  const CopyPins pins =
      store_.index->Lookup({space_.id(), keys[2]}, 0, StoreFixture::Whole(space_));
  ASSERT_EQ(pins.size(), 1u);
  EXPECT_TRUE(store_.index->Drop(pins.front()));
  EXPECT_EQ(Reason(keys[2]), RemovalReason::kDamaged);
  store_.index->Invalidate(space_.id());
  EXPECT_EQ(Reason(keys[1]), RemovalReason::kInvalidated);
  ASSERT_TRUE(space_.coding().SetPolicy(*store_.spaces.PolicyOf("raw", "", 60)).ok());
  store_.PutChain(space_, 1);
  store_.clock.Advance(absl::Seconds(61));
  EXPECT_EQ(Reason(keys[0]), RemovalReason::kExpired) << "before it is collected";
  store_.upkeep->RunOnce();
  EXPECT_EQ(Reason(keys[0]), RemovalReason::kExpired);
}

TEST_F(ExplainTest, ADeviceThatIsOut) {
  const auto keys = store_.PutChain(space_, 1);
  store_.WriteAllDown();
  while (store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity) > 0) {
  }
  EXPECT_THAT(Fate(keys[0]).tiers, testing::ElementsAre(TierId::kSsd));
  store_.index->TakeOut(TierId::kSsd);
  EXPECT_EQ(Reason(keys[0]), RemovalReason::kDeviceOut);
}

TEST_F(ExplainTest, ARefusedPut) {
  const proto::BlockKey key = StoreFixture::Key(5);
  const codecs::Slice whole = StoreFixture::Whole(space_);
  const std::vector<std::byte> source = StoreFixture::Source(space_, key, 0, whole);
  proto::Frame frame = StoreFixture::PutFrame(space_, key, whole, source);
  std::get<proto::Put>(frame.body).is_derived = true;  // a lossless space takes none
  EXPECT_FALSE(store_.RunPut(frame, source, store_.session).ok());
  EXPECT_EQ(Reason(key), RemovalReason::kRefused);
  // Of another tenant's space nothing is learnt, or recorded.
  frame.body = std::get<proto::Put>(frame.body);
  std::get<proto::Put>(frame.body).key = StoreFixture::Key(6);
  const Session other = store_.OpenSession("other");
  EXPECT_FALSE(store_.RunPut(frame, source, other).ok());
  EXPECT_FALSE(Fate(StoreFixture::Key(6)).removal.has_value());
}

}  // namespace
}  // namespace cairn
