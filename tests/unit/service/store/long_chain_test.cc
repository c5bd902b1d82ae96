// SPDX-License-Identifier: Apache-2.0
// A prefix is worth more than its tail: what goes, and for whom, where chains are longer than the
// tier or broken.
#include <gtest/gtest.h>

#include <random>

#include "base/status.h"
#include "tests/support/random.h"
#include "tests/support/store_fixture.h"
#include "tests/unit/service/store/chains.h"

namespace cairn {
namespace {

constexpr uint64_t kHostBytes = 16_MiB;
constexpr uint32_t kTokens = 128;
constexpr uint64_t kBlockBytes = uint64_t{kTokens} * 1024;  // of source

proto::SpaceIdentity LargeBlocks() {
  proto::SpaceIdentity identity = StoreFixture::Identity();
  identity.tokens_per_block = kTokens;
  return identity;
}

class LongChainTest : public testing::Test {
 protected:
  explicit LongChainTest(std::string_view recipe = "raw")
      : space_(store_.OpenSpace(recipe, LargeBlocks())) {}

  // Block `i`, counted from 0, of the chain whose first block has the number `first`.
  absl::Status Put(uint64_t first, uint64_t i) {
    return store_
        .PutSource(space_, StoreFixture::Key(first + i), StoreFixture::Whole(space_),
                   i == 0 ? Key{} : StoreFixture::Key(first + i - 1), i * kTokens)
        .status();
  }
  absl::StatusOr<PutOwner> Begin(uint64_t first, uint64_t i) {
    const Key key = StoreFixture::Key(first + i);
    source_ = StoreFixture::Source(space_, key, 0, StoreFixture::Whole(space_));
    proto::Frame frame = StoreFixture::PutFrame(space_, key, StoreFixture::Whole(space_), source_);
    auto& body = std::get<proto::Put>(frame.body);
    body.parent = i == 0 ? Key{} : StoreFixture::Key(first + i - 1);
    body.first_position = i * kTokens;
    auto put = store_.AdmitPut(frame);
    if (put.ok()) {
      std::copy(source_.begin(), source_.end(), (*put)->target().begin());
    }
    return put;
  }
  absl::Status Land(PutOwner put) {
    const std::vector<std::byte> payload(put->target().begin(), put->target().end());
    return store_.Land(std::move(put), payload).status();
  }
  // Blocks matched of a chain of `count`.
  uint64_t Matched(uint64_t first, uint64_t count) {
    std::vector<Key> keys;
    for (uint64_t i = 0; i < count; ++i) {
      keys.push_back(StoreFixture::Key(first + i));
    }
    return MatchedBlocks(store_, store_.Query(space_, std::move(keys)));
  }
  bool IsThere(uint64_t number) {
    return store_.index->Contains(space_.id(), {StoreFixture::Key(number)}, space_.whole())[0];
  }
  void Delete(uint64_t number) {
    EXPECT_EQ(store_.index->Delete(space_.id(), {StoreFixture::Key(number)}), 1u);
  }

  StoreFixture store_{kHostBytes};
  SpaceEntry& space_;
  std::vector<std::byte> source_;
};

class LongChainsTest : public LongChainTest,
                       public testing::WithParamInterface<std::tuple<const char*, double>> {
 protected:
  LongChainsTest() : LongChainTest(std::get<0>(GetParam())) {}
};

// Older chains fill the tier first. Then a chain longer than the tier is put, its root first,
// `at_once` puts at a time that land in any order.
TEST_P(LongChainsTest, ThePrefixThatFitsIsKept) {
  for (const uint64_t at_once : {1, 16}) {
    std::mt19937_64 random = SeededRandom(at_once);
    uint64_t older = 0;
    for (uint64_t chain = 0; chain < 20; ++chain) {
      for (uint64_t i = 0; i < 10; ++i) {
        (void)Put(1'000'000 + at_once * 100'000 + chain * 1000, i);
      }
    }
    older = store_.index->figures().block_count;
    const uint64_t first = 10'000 * at_once;
    const uint64_t image_bytes = store_.index->figures().image_bytes / older;
    const uint64_t capacity = kHostBytes / RoundedExtentBytes(image_bytes);
    ASSERT_GE(older, capacity * 9 / 10) << "the tier is full";
    const uint64_t count =
        static_cast<uint64_t>(static_cast<double>(capacity) * std::get<1>(GetParam()));
    std::vector<PutOwner> in_flight;
    for (uint64_t i = 0; i < count || !in_flight.empty();) {
      if (i < count && in_flight.size() < at_once) {
        auto put = Begin(first, i++);
        ASSERT_TRUE(put.ok()) << put.status();
        in_flight.push_back(*std::move(put));
        continue;
      }
      std::swap(in_flight[random() % in_flight.size()], in_flight.back());
      (void)Land(std::move(in_flight.back()));
      in_flight.pop_back();
    }
    EXPECT_GE(Matched(first, count), capacity * 9 / 10) << at_once << " at once, of " << count;
    // Upkeep makes room ahead of need, and takes no more of the prefix than that.
    store_.upkeep->RunOnce();
    EXPECT_GE(Matched(first, count), capacity * 9 / 10);
    store_.index->Invalidate(space_.id());
    EXPECT_EQ(store_.host->used_bytes(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, LongChainsTest,
                         testing::Combine(testing::Values("raw", "exact"),
                                          testing::Values(1.2, 3.0)));

TEST_F(LongChainTest, AnOrphanGoesFirst) {
  ASSERT_TRUE(Put(1, 0).ok());
  ASSERT_TRUE(Put(100, 5).ok());  // its parent is nowhere
  ASSERT_TRUE(Put(100, 6).ok());
  ASSERT_TRUE(Put(200, 0).ok());
  EXPECT_GT(store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_FALSE(IsThere(106)) << "its end first";
  EXPECT_GT(store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_FALSE(IsThere(105));
  EXPECT_TRUE(IsThere(1) && IsThere(200));
}

TEST_F(LongChainTest, WhatFollowsADeletedBlockGoesFirst) {
  ASSERT_TRUE(Put(1, 0).ok());
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(Put(100, i).ok());
  }
  Delete(105);
  ASSERT_TRUE(Put(1, 1).ok());
  for (int i = 0; i < 34; ++i) {
    ASSERT_GT(store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  }
  EXPECT_EQ(Matched(100, 40), 5u);
  EXPECT_EQ(Matched(1, 2), 2u);
  EXPECT_EQ(store_.index->figures().block_count, 7u);
}

TEST_F(LongChainTest, ABlockThatComesBackMakesItsChainWholeAgain) {
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(Put(100, i).ok());
  }
  Delete(105);
  EXPECT_GT(store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_FALSE(IsThere(139));
  ASSERT_TRUE(Put(100, 5).ok());
  ASSERT_TRUE(Put(1, 0).ok());
  ASSERT_TRUE(Put(200, 3).ok());  // an orphan, and the youngest of all
  EXPECT_GT(store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_FALSE(IsThere(203));
  EXPECT_EQ(Matched(100, 39), 39u);
}

TEST_F(LongChainTest, APutOfAnOrphanEvictsOrphansOnly) {
  uint64_t fit = 0;
  while (store_.host->used_bytes() + kBlockBytes <= kHostBytes) {
    ASSERT_TRUE(Put(1, fit++).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(Put(1000, 5)));
  EXPECT_EQ(Matched(1, fit), fit);
  Delete(fit);
  ASSERT_TRUE(Put(1000, 5).ok()) << "into what is free";
  ASSERT_TRUE(Put(2000, 5).ok()) << "it takes the place of the other";
  EXPECT_FALSE(IsThere(1005));
  EXPECT_TRUE(absl::IsResourceExhausted(Put(2000, 6))) << "what it follows does not go for it";
  EXPECT_TRUE(IsThere(2005));
  EXPECT_EQ(Matched(1, fit), fit - 1);
  ASSERT_TRUE(Put(1, fit - 1).ok());
  EXPECT_FALSE(IsThere(2005));
  EXPECT_EQ(Matched(1, fit), fit);
}

TEST_F(LongChainTest, AParentInFlightIsNoMissingOne) {
  ASSERT_TRUE(Put(1, 0).ok());
  {
    auto parent = Begin(100, 0);
    ASSERT_TRUE(parent.ok()) << parent.status();
    ASSERT_TRUE(Put(100, 1).ok());
    ASSERT_TRUE(Put(100, 2).ok());
    EXPECT_GT(store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
    EXPECT_FALSE(IsThere(1)) << "the oldest: none is an orphan";
  }
  // The put of their parent was given up.
  ASSERT_TRUE(Put(1, 0).ok());
  EXPECT_GT(store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_FALSE(IsThere(102));
  EXPECT_GT(store_.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_FALSE(IsThere(101));
  EXPECT_TRUE(IsThere(1));
}

TEST_F(LongChainTest, ClaimsInFlightThatContradictAreRefused) {
  auto put = Begin(100, 3);  // from 3 x 128 on, after 102
  ASSERT_TRUE(put.ok());
  const auto at = [&](uint64_t number, uint64_t parent, uint64_t position) {
    return store_
        .PutSource(space_, StoreFixture::Key(number), StoreFixture::Whole(space_),
                   StoreFixture::Key(parent), position)
        .status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(at(102, 103, 4 * kTokens))) << "a circle";
  EXPECT_TRUE(absl::IsInvalidArgument(at(103, 99, 3 * kTokens))) << "another parent";
  EXPECT_TRUE(absl::IsInvalidArgument(at(104, 103, 5 * kTokens)));
  put = absl::CancelledError("");
  EXPECT_TRUE(at(102, 103, 4 * kTokens).ok()) << "nothing is left of it";
}

// Blocks of all lengths of chains, deleted and put again: what is left goes in the end, with every
// book at zero.
TEST_F(LongChainTest, WideAndDeepChainsAreSettledInSteps) {
  constexpr uint64_t kBlocks = 6000;
  StoreFixture store(64_MiB, /*blocks_max=*/16384);
  const auto publish = [&](uint64_t number, uint64_t parent, uint64_t position) {
    store.PublishPage(number, parent, position);
  };
  publish(1, 0, 0);
  publish(9'999, 0, 0);
  for (uint64_t i = 0; i < kBlocks; ++i) {
    publish(10'000 + i, 1, 16);                                      // wide
    publish(20'000 + i, i == 0 ? 1 : 20'000 + i - 1, 16 * (i + 1));  // deep
  }
  EXPECT_EQ(store.index->Delete(7, {StoreFixture::Key(1)}), 1u);
  for (uint64_t i = 0; i < kBlocks; ++i) {
    ASSERT_GT(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  }
  publish(1, 0, 0);
  publish(30'000, 29'999, 16);
  EXPECT_GT(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_EQ(store.index->Delete(7, {StoreFixture::Key(30'000)}), 0u) << "the one orphan went";
  EXPECT_EQ(store.index->figures().block_count, kBlocks + 2);
  store.EvictHost();
  EXPECT_EQ(store.index->figures().block_count, 0u);
  EXPECT_EQ(store.host->used_bytes(), 0u);
}

// The tier is full of blocks of one page, of two chains in turn. A block of eight pages follows one
// of them.
TEST_F(LongChainTest, AWindowSparesTheChainThatItIsFor) {
  StoreFixture store(16_MiB, /*blocks_max=*/16384);
  const auto claim = [](uint64_t number, uint64_t parent, uint64_t position) {
    BlockClaim block;
    block.name = {7, StoreFixture::Key(number)};
    block.parent = parent == 0 ? Key{} : StoreFixture::Key(parent);
    block.first_position = position;
    block.tokens = 16;
    block.slice = {0, 1, 0, 1};
    return block;
  };
  const uint64_t pages = store.host->capacity_bytes() / 4_KiB;
  const auto publish = [&](uint64_t chain, uint64_t i) {
    NewImage image;
    image.claim = claim(chain + i, i == 0 ? 0 : chain + i - 1, 16 * i);
    image.copy.extent = *store.host->Allocate(4_KiB);
    CAIRN_CHECK_OK(store.index->Publish(std::move(image)));
  };
  // Runs of eight of each.
  for (uint64_t i = 0; i < pages / 2; ++i) {
    publish(i / 8 % 2 == 0 ? 10'000 : 50'000, i / 16 * 8 + i % 8);
  }
  std::vector<Extent> staging;
  while (true) {
    auto extent = store.host->AllocateStaging(4_KiB);
    if (!extent.ok()) break;
    staging.push_back(*std::move(extent));
  }
  for (uint64_t i = pages / 2; i < pages; ++i) {
    publish(i / 8 % 2 == 0 ? 10'000 : 50'000, i / 16 * 8 + i % 8);
  }
  const uint64_t count = pages / 2;
  const BlockClaim next = claim(10'000 + count, 10'000 + count - 1, 16 * count);
  auto expected = store.index->ReservePut(next);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto there = [&](uint64_t chain) {
    uint64_t blocks = 0;
    for (uint64_t i = 0; i < count; ++i) {
      blocks += !store.index->PinImages({7, StoreFixture::Key(chain + i)}).empty();
    }
    return blocks;
  };
  for (int i = 0; i < 10; ++i) {
    const auto large = store.host->Allocate(32_KiB, &next.name);
    ASSERT_TRUE(large.ok()) << large.status();
  }
  EXPECT_EQ(there(10'000), count);
  EXPECT_LT(there(50'000), count);
}

}  // namespace
}  // namespace cairn
