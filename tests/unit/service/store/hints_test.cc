// SPDX-License-Identifier: Apache-2.0
// Hints: which blocks they rank, how long, and for whom.
#include "service/index/hints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service/tier/hint_record.h"
#include "tests/support/lasting_store.h"

namespace cairn {
namespace {

using testing::HasSubstr;

TEST(HintRecordTest, AListIsReadAsItWasWritten) {
  std::vector<HintRecord> hints(3);
  hints[0].space[0] = std::byte{7};
  hints[1].key[31] = std::byte{9};
  hints[1].due_unix_s = 0xfedcba98;
  hints[2].priority = limits::kRetainPriorityMax;
  const std::string bytes = SerializeHints(hints);
  EXPECT_EQ(bytes.size(), 1 + 3 * 69u);
  EXPECT_EQ(bytes[0], 1);
  EXPECT_EQ(bytes.substr(1 + 69 + 64, 4), "\x98\xba\xdc\xfe");
  const auto read = ParseHints(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, hints);
  EXPECT_EQ(ParseHints(SerializeHints({}))->size(), 0u);
  EXPECT_TRUE(absl::IsDataLoss(ParseHints("").status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseHints(bytes.substr(0, bytes.size() - 1)).status()));
  EXPECT_TRUE(absl::IsUnimplemented(ParseHints("\x02").status()));
  std::string wrong = bytes;
  wrong.back() = limits::kRetainPriorityMax + 1;
  EXPECT_TRUE(absl::IsDataLoss(ParseHints(wrong).status()));
}

class HintsTest : public testing::Test {
 protected:
  uint32_t Set(const std::vector<proto::BlockKey>& keys, uint8_t priority, uint32_t seconds,
               std::string_view tenant = "acme") {
    const auto stored = store_->index->SetHints(space_->id(), tenant, keys, priority, seconds);
    CAIRN_CHECK_OK(stored);
    return *stored;
  }
  // A block without parent: only its rank and its age count.
  proto::BlockKey Put(uint64_t number) {
    CAIRN_CHECK_OK(
        store_->PutSource(*space_, StoreFixture::Key(number), StoreFixture::Whole(*space_)));
    return StoreFixture::Key(number);
  }
  // The blocks in the order in which they are evicted.
  std::vector<uint64_t> Order(const std::vector<uint64_t>& numbers) {
    std::vector<uint64_t> order;
    std::vector<uint64_t> left = numbers;
    while (store_->index->EvictOldest(TierId::kHost, EvictionReason::kCapacity) > 0) {
      std::erase_if(left, [&](uint64_t number) {
        const bool is_gone = !Has(StoreFixture::Key(number));
        if (is_gone) order.push_back(number);
        return is_gone;
      });
    }
    return order;
  }
  bool Has(const proto::BlockKey& key) {
    return store_->index->Contains(space_->id(), {key}, {space_->whole().data(), 1}).front();
  }
  void Use(const proto::BlockKey& key) {
    EXPECT_FALSE(
        store_->index->Lookup({space_->id(), key}, 0, StoreFixture::Whole(*space_)).empty());
  }
  void Pass(int seconds) {
    store_->clock.Advance(absl::Seconds(seconds));
    store_->index->EndHints();
  }

  std::unique_ptr<StoreFixture> store_ = std::make_unique<StoreFixture>();
  SpaceEntry* space_ = &store_->OpenSpace("raw");
};

TEST_F(HintsTest, PriorityGoesBeforeRecency) {
  const auto low = Put(1), high = Put(2), demoted = Put(3);
  Put(4);
  Put(5);
  EXPECT_EQ(Set({high}, 3, 100), 1u);
  EXPECT_EQ(Set({low}, 1, 100), 1u);
  EXPECT_EQ(Set({demoted}, 0, 0), 1u);
  EXPECT_EQ(Order({1, 2, 3, 4, 5}), (std::vector<uint64_t>{3, 4, 5, 1, 2}));
}

TEST_F(HintsTest, ABlockMayBeNamedBeforeItIsPut) {
  EXPECT_EQ(Set({StoreFixture::Key(1)}, 1, 100), 0u);
  Put(1);
  Put(2);
  EXPECT_EQ(Order({1, 2}), (std::vector<uint64_t>{2, 1}));
  Put(1);
  Put(3);
  EXPECT_EQ(Order({1, 3}), (std::vector<uint64_t>{3, 1})) << "it came back within its time";
}

TEST_F(HintsTest, ARetentionEnds) {
  Set({Put(1)}, 5, 10);
  Put(2);
  Pass(9);
  Use(StoreFixture::Key(2));
  Pass(1);
  EXPECT_EQ(Order({1, 2}), (std::vector<uint64_t>{1, 2}));
}

TEST_F(HintsTest, ADemotionBeginsUnlessTheBlockIsUsed) {
  Put(1);
  const auto second = Put(2), third = Put(3);
  Set({third, second}, 0, 10);
  Use(second);
  Pass(10);
  EXPECT_EQ(Order({1, 2, 3}), (std::vector<uint64_t>{3, 1, 2}));
  Put(1);
  Put(2);
  Set({StoreFixture::Key(2)}, 0, 0);
  Use(StoreFixture::Key(2));
  EXPECT_EQ(Order({1, 2}), (std::vector<uint64_t>{1, 2})) << "a use ends a demotion";
}

TEST_F(HintsTest, LeavesGoFirstAllTheSame) {
  const auto keys = store_->PutChain(*space_, 3);
  Set({keys[2]}, 5, 100);
  Set({keys[0]}, 0, 0);
  EXPECT_EQ(Order({1, 2, 3}), (std::vector<uint64_t>{3, 2, 1}));
}

TEST_F(HintsTest, TheLastHintCounts) {
  const auto key = Put(1);
  Put(2);
  Set({key}, 4, 100);
  Set({key}, 0, 0);
  EXPECT_EQ(Order({1, 2}), (std::vector<uint64_t>{1, 2}));
  Set({Put(3)}, 0, 50);
  Set({StoreFixture::Key(3)}, 1, 100);
  Put(4);
  Pass(60);
  EXPECT_EQ(Order({3, 4}), (std::vector<uint64_t>{4, 3}));
}

// --- Blocks that were fetched from other members

class FetchedTest : public HintsTest {
 protected:
  // As RemoteBlocks stores it. The get that waits has not read it yet.
  proto::BlockKey Fetch(uint64_t number, const codecs::Slice& slice, bool is_fetched = true) {
    const proto::BlockKey key = StoreFixture::Key(number);
    const std::vector<std::byte> image = StoreFixture::Image(*space_, key, slice, "raw");
    const proto::Frame frame =
        StoreFixture::PutFrame(*space_, key, slice, image, proto::Form::kImage);
    absl::Status status = absl::UnknownError("");
    store_->puts->StoreCopy(
        StoreFixture::RequestOf(store_->session), std::get<proto::Put>(frame.body), image,
        {.is_fetched = is_fetched},
        [&status](const Request&, const absl::StatusOr<proto::PutReply>& reply) {
          status = reply.status();
        });
    CAIRN_CHECK_OK(status);
    return key;
  }
  // And the get reads it.
  proto::BlockKey FetchAndUse(uint64_t number) {
    const proto::BlockKey key = Fetch(number, StoreFixture::Whole(*space_));
    Use(key);
    return key;
  }
  void Match(const proto::BlockKey& key) {
    EXPECT_EQ(store_->index->Match(store_->Query(*space_, {key}))->blocks.size(), 1u);
  }
};

TEST_F(FetchedTest, AreEvictedFirstUntilTheyAreUsedAgain) {
  Put(1);
  const auto demoted = Put(2);
  Set({demoted}, 0, 0);
  const auto once = FetchAndUse(3), matched = FetchAndUse(4), got = FetchAndUse(5);
  Match(matched);
  Pass(3);
  Use(got);
  EXPECT_EQ(Order({1, 2, 3, 4, 5}), (std::vector<uint64_t>{3, 2, 1, 4, 5}));
  FetchAndUse(3);
  EXPECT_TRUE(Has(once)) << "it may come back";
}

// Else the room for one would be taken from one that nobody has read yet.
TEST_F(FetchedTest, AreOrdinaryUntilTheGetHasReadThem) {
  Put(1);
  Fetch(2, StoreFixture::Whole(*space_));
  EXPECT_EQ(Order({1, 2}), (std::vector<uint64_t>{1, 2}));
}

// Ranks of an engine get a slice each.
TEST_F(FetchedTest, ForSeveralGetsAreUsedOnce) {
  const auto key = Fetch(1, kLeft);
  EXPECT_FALSE(store_->index->Lookup({space_->id(), key}, 0, kLeft).empty());
  Fetch(1, kRight);
  EXPECT_FALSE(store_->index->Lookup({space_->id(), key}, 0, kRight).empty());
  Put(2);
  Use(key);
  EXPECT_EQ(Order({1, 2}), (std::vector<uint64_t>{1, 2}));
}

TEST_F(FetchedTest, HintsCountAndADemotionRaisesNone) {
  Set({StoreFixture::Key(1)}, 1, 100);
  FetchAndUse(1);
  const auto second = FetchAndUse(2), third = FetchAndUse(3);
  Put(4);
  Set({second}, 0, 0);
  Set({third}, 0, 10);
  Set({Put(5)}, 0, 0);
  Pass(11);
  EXPECT_EQ(Order({1, 2, 3, 4, 5}), (std::vector<uint64_t>{2, 3, 5, 4, 1}));
}

TEST_F(FetchedTest, AreNoCopiesAnyMoreOnceAClientHereComputesAPart) {
  const auto key = Fetch(1, kLeft);
  EXPECT_FALSE(store_->index->Lookup({space_->id(), key}, 0, kLeft).empty());
  FetchAndUse(2);
  CAIRN_CHECK_OK(store_->PutSource(*space_, key, kRight));
  EXPECT_EQ(Order({1, 2}), (std::vector<uint64_t>{2, 1}));
}

TEST_F(FetchedTest, WhatWasOfferedIsABlockLikeOthers) {
  Put(1);
  Use(Fetch(2, StoreFixture::Whole(*space_), /*is_fetched=*/false));
  EXPECT_EQ(Order({1, 2}), (std::vector<uint64_t>{1, 2}));
}

TEST_F(HintsTest, ATenantHasItsShareAndAnErrorChangesNothing) {
  BlockIndex::Options options{.blocks_max = 64, .images_max = 64, .hints_max = 8};
  options.lease_bytes_max = 1_MiB;
  auto host = HostTier::Make({.capacity_bytes = 16_MiB, .staging_bytes = 1_MiB, .fault_in = false});
  CAIRN_CHECK_OK(host);
  Tiers tiers(*std::move(host));
  FakeClock clock;
  BlockIndex index(options, tiers, clock);
  std::vector<proto::BlockKey> keys;
  for (uint64_t i = 0; i < 5; ++i) keys.push_back(StoreFixture::Key(i));
  const auto refused = index.SetHints(1, "a", keys, 1, 100);
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("hints"));
  keys.pop_back();
  ASSERT_TRUE(index.SetHints(1, "a", keys, 1, 100).ok()) << "half is one tenant's alone";
  ASSERT_TRUE(index.SetHints(1, "a", keys, 2, 100).ok()) << "they have one already";
  EXPECT_FALSE(index.SetHints(1, "a", {StoreFixture::Key(9)}, 1, 100).ok());
  EXPECT_TRUE(index.SetHints(2, "b", {StoreFixture::Key(9)}, 1, 100).ok());
  clock.Advance(absl::Seconds(100));
  EXPECT_EQ(index.EndHints(), absl::InfiniteFuture());
  EXPECT_TRUE(index.SetHints(1, "a", keys, 1, 100).ok()) << "what ended gave its place back";
  index.Delete(1, keys);
  EXPECT_TRUE(index.SetHints(1, "a", {StoreFixture::Key(9)}, 1, 100).ok());
}

}  // namespace
}  // namespace cairn
