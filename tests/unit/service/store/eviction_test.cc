// SPDX-License-Identifier: Apache-2.0
// Chains, eviction, and what walks over all blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "tests/support/metric_capture.h"
#include "tests/support/store_fixture.h"
#include "tests/unit/service/store/chains.h"

namespace cairn {
namespace {

TEST(ChainTest, PositionsAreHeldToTheParent) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto whole = StoreFixture::Whole(space);
  const auto put = [&](uint64_t key, uint64_t parent, uint64_t position) {
    return store
        .PutSource(space, StoreFixture::Key(key), whole,
                   parent == 0 ? Key{} : StoreFixture::Key(parent), position)
        .status()
        .code();
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  ASSERT_EQ(put(1, 0, 0), absl::StatusCode::kOk);
  EXPECT_EQ(put(2, 1, 0), kInvalid);
  EXPECT_EQ(put(2, 1, 17), kInvalid);
  ASSERT_EQ(put(2, 1, 16), absl::StatusCode::kOk);
  // Children may come before their parent, and hold it, and each other, to their position.
  ASSERT_EQ(put(11, 10, 32), absl::StatusCode::kOk);
  EXPECT_EQ(put(12, 10, 48), kInvalid);
  EXPECT_EQ(put(10, 0, 0), kInvalid);
  // A circle would have to end where it starts.
  EXPECT_EQ(put(10, 11, 48), kInvalid);
  ASSERT_EQ(put(10, 0, 16), absl::StatusCode::kOk);
  EXPECT_EQ(put(13, 0, uint64_t{1} << 60), kInvalid);
}

TEST(EvictionTest, LeasedBlocksOutliveAllOthers) {
  StoreFixture store(16_MiB);
  auto identity = StoreFixture::Identity();
  identity.tokens_per_block = 1024;  // 1 MiB of source a block
  const SpaceEntry& space = store.OpenSpace("raw", identity);
  const auto whole = StoreFixture::Whole(space);
  const auto leased = store.PutChain(space, 3);
  ASSERT_EQ(store.index->Match(store.Query(space, leased, true))->blocks.size(), 3u);
  std::vector<Key> others;
  for (uint64_t i = 100; i < 140; ++i) {  // one after another evicts an older one
    others.push_back(StoreFixture::Key(i));
    ASSERT_TRUE(store.PutSource(space, others.back(), whole).ok());
  }
  MetricCapture metrics;
  store.index->Report(metrics);
  EXPECT_GE(metrics.Value("cairn_evictions_total{tier=\"host\",reason=\"capacity\"}"), 20);
  while (store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity) >
         0) {  // ends: what may go is finite
  }
  EXPECT_THAT(store.index->Contains(space.id(), others, space.whole()), testing::Each(false));
  for (const auto& key : leased) {
    const auto answer = store.RunGet(space, key, whole);
    ASSERT_TRUE(answer.ok()) << answer.status();
    const auto source = StoreFixture::Source(space, key, 0, whole);
    EXPECT_TRUE(std::ranges::equal(answer->payload, source));
  }
  store.sessions.End(store.session.id);
  store.EvictHost();
  EXPECT_EQ(store.index->figures().block_count, 0u);
}

TEST(EvictionTest, LeafBeforeParentAndOldestLeafFirst) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto keys = store.PutChain(space, 3);
  const auto other = store.PutChain(space, 2, 100);
  ASSERT_TRUE(store.RunGet(space, keys[2], StoreFixture::Whole(space)).ok());
  const auto evicted = [&] {
    const auto before = store.index->Contains(space.id(), keys, space.whole());
    const auto before_other = store.index->Contains(space.id(), other, space.whole());
    CAIRN_CHECK(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity) > 0);
    const auto after = store.index->Contains(space.id(), keys, space.whole());
    const auto after_other = store.index->Contains(space.id(), other, space.whole());
    for (size_t i = 0; i < keys.size(); ++i) {
      if (before[i] != after[i]) return i;
    }
    for (size_t i = 0; i < other.size(); ++i) {
      if (before_other[i] != after_other[i]) return 100 + i;
    }
    return size_t{999};
  };
  // keys[2] was read last, so the other chain's leaf is the oldest; then, as leaves, the parents by
  // age.
  EXPECT_EQ(evicted(), 101u);
  EXPECT_EQ(evicted(), 100u);
  EXPECT_EQ(evicted(), 2u);
  EXPECT_EQ(evicted(), 1u);
  EXPECT_EQ(evicted(), 0u);
  EXPECT_EQ(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
}

TEST(EvictionTest, AParentStaysWhileItsChildIsBeingPut) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto whole = StoreFixture::Whole(space);
  const auto keys = store.PutChain(space, 2);
  const auto source = StoreFixture::Source(space, StoreFixture::Key(3), 0, whole);
  proto::Frame frame = StoreFixture::PutFrame(space, StoreFixture::Key(3), whole, source);
  std::get<proto::Put>(frame.body).parent = keys[1];
  std::get<proto::Put>(frame.body).first_position = 32;
  {
    const auto put = store.AdmitPut(frame);
    ASSERT_TRUE(put.ok()) << put.status();
    store.EvictHost();
    EXPECT_EQ(store.index->Contains(space.id(), keys, space.whole()),
              (std::vector<bool>{true, true}))
        << "nor do those before it";
  }
  EXPECT_EQ(store.index->pinned_bytes(), 0u);
  EXPECT_GT(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
}

TEST(EvictionTest, UnpinnedAncestorsOfAPinnedLeafCanGoInTheEnd) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto keys = store.PutChain(space, 3);
  const auto pins = store.index->Lookup({space.id(), keys[2]}, 0, StoreFixture::Whole(space));
  EXPECT_GT(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_GT(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_EQ(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_EQ(store.index->figures().block_count, 1u);
}

TEST(EvictionTest, WithEveryLeafPinnedAFewBlocksAreLookedAt) {
  constexpr uint64_t kChains = 1000;
  StoreFixture store(64_MiB, /*blocks_max=*/16384);
  std::vector<CopyPins> pins;
  for (uint64_t i = 1; i <= kChains; ++i) {
    store.PublishPage(i);
    store.PublishPage(10'000 + i, i, 16);
    pins.push_back(store.index->Lookup({7, StoreFixture::Key(10'000 + i)}, 0, {0, 1, 0, 1}));
  }
  const double before = IndexMetric(store, "cairn_index_visits_total");
  for (uint64_t i = 0; i < kChains; ++i) {
    ASSERT_GT(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u) << i;
  }
  EXPECT_EQ(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u)
      << "the rest is pinned";
  EXPECT_EQ(store.index->figures().block_count, kChains);
  EXPECT_LE(IndexMetric(store, "cairn_index_visits_total") - before, 10.0 * kChains);
  EXPECT_LE(IndexMetric(store, "cairn_index_hold_visits_max"), limits::kVisitsPerHoldMax);
}

TEST(EvictionTest, PinnedLeavesDoNotKeepAnEvictionLong) {
  constexpr uint64_t kBlocks = 5000;
  StoreFixture store(64_MiB, /*blocks_max=*/16384);
  std::vector<CopyPins> pins;
  for (uint64_t i = 1; i <= kBlocks; ++i) {
    store.PublishPage(i);
    if (i < kBlocks) {
      pins.push_back(store.index->Lookup({7, StoreFixture::Key(i)}, 0, {0, 1, 0, 1}));
    }
  }
  // The one that may go is the youngest.
  EXPECT_GT(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_EQ(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  pins.resize(pins.size() / 2);
  EXPECT_GT(store.index->EvictOldest(TierId::kHost, EvictionReason::kCapacity), 0u);
  EXPECT_LE(IndexMetric(store, "cairn_index_hold_visits_max"), limits::kVisitsPerHoldMax);
}

// What a lane does when staging is in pieces. The arena of the tier is full of small images, all
// leased but for some in its second half.
TEST(EvictionTest, StagingLooksForAWindowOnceAndNotFar) {
  StoreFixture store(16_MiB, /*blocks_max=*/16384, /*staging_bytes=*/16_MiB);
  std::vector<Extent> staging;
  const uint64_t pages = store.host->arena().capacity_bytes() / 4_KiB;
  for (uint64_t i = 1; i <= pages / 2; ++i) {
    store.PublishPage(i);
    staging.push_back(*store.host->AllocateStaging(4_KiB));
  }
  for (uint64_t i = 0; i < 512; ++i) {
    staging[staging.size() / 2 + i].Reset();
  }
  EXPECT_EQ(store.host->arena().largest_free_bytes(), 4_KiB) << "in pieces";
  int tries = 0;
  for (bool is_staged = false; !is_staged && tries < 100; ++tries) {
    const double windows = IndexMetric(store, "cairn_index_windows_total");
    is_staged = store.host->AllocateStaging(1_MiB).ok();
    ASSERT_EQ(IndexMetric(store, "cairn_index_windows_total") - windows, 1);
  }
  EXPECT_GT(tries, 1) << "the window is not among the first thousand ranges";
  EXPECT_LE(tries, 9) << "each try goes on where the one before ended";
}

TEST(EvictionTest, OverFullTierEvictsAndRefusesOnlyWhenAllIsPinned) {
  StoreFixture store(16_MiB);
  auto identity = StoreFixture::Identity();
  identity.tokens_per_block = 1024;
  const SpaceEntry& space = store.OpenSpace("raw", identity);
  const auto whole = StoreFixture::Whole(space);
  for (uint64_t i = 1; i <= 100; ++i) {
    ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(i), whole).ok());
    ASSERT_LE(store.host->used_bytes(), store.host->capacity_bytes());
  }
  EXPECT_TRUE(store.RunGet(space, StoreFixture::Key(100), whole).ok());
  EXPECT_FALSE(store.RunGet(space, StoreFixture::Key(1), whole).ok());
  std::vector<CopyPins> pins;
  for (uint64_t i = 1; i <= 100; ++i) {
    pins.push_back(store.index->Lookup({space.id(), StoreFixture::Key(i)}, 0, whole));
  }
  const auto refused = store.PutSource(space, StoreFixture::Key(101), whole);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_EQ(store.host->staging_bytes(), 0u);
  pins.clear();
  EXPECT_TRUE(store.PutSource(space, StoreFixture::Key(101), whole).ok());
  MetricCapture metrics;
  store.index->Report(metrics);
  EXPECT_GT(metrics.Value("cairn_evictions_total{tier=\"host\",reason=\"capacity\"}"), 60);
  EXPECT_EQ(metrics.Value("cairn_image_published_bytes_total") -
                metrics.Value("cairn_image_unlinked_bytes_total"),
            metrics.Value("cairn_image_bytes"));
}

TEST(EvictionTest, WatermarkStopsAtTheLowMark) {
  StoreFixture store(16_MiB);
  auto identity = StoreFixture::Identity();
  identity.tokens_per_block = 256;
  const SpaceEntry& space = store.OpenSpace("raw", identity);
  for (uint64_t i = 1; i <= 200; ++i) {
    ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(i), StoreFixture::Whole(space)).ok());
  }
  EXPECT_GT(store.host->used_bytes(), store.host->capacity_bytes() / 100 * 97);
  store.upkeep->RunOnce();
  EXPECT_LE(store.host->used_bytes(), store.host->capacity_bytes() / 100 * 95);
  EXPECT_GT(store.host->used_bytes(), store.host->capacity_bytes() / 100 * 90);
}

TEST(EvictionTest, LargeBlocksGetAWindowAmongSmallOnes) {
  StoreFixture store(16_MiB, 4096, 4_MiB);
  const SpaceEntry& small = store.OpenSpace();
  auto identity = StoreFixture::Identity();
  identity.tokens_per_block = 1024;
  identity.model = "large";
  const SpaceEntry& large = store.OpenSpace("raw", identity);
  for (uint64_t i = 1; i <= 1500; ++i) {
    ASSERT_TRUE(store.PutSource(small, StoreFixture::Key(i), StoreFixture::Whole(small)).ok());
  }
  std::vector<CopyPins> pins;
  for (uint64_t i = 1000; i <= 1500; i += 100) {
    pins.push_back(
        store.index->Lookup({small.id(), StoreFixture::Key(i)}, 0, StoreFixture::Whole(small)));
  }
  for (uint64_t i = 1; i <= 8; ++i) {
    ASSERT_TRUE(store.PutSource(large, StoreFixture::Key(i), StoreFixture::Whole(large)).ok());
  }
  for (uint64_t i = 1000; i <= 1500; i += 100) {
    EXPECT_TRUE(store.RunGet(small, StoreFixture::Key(i), StoreFixture::Whole(small)).ok());
  }
}

TEST(EvictionTest, TheIndexHasAMaximumOfBlocks) {
  StoreFixture store(16_MiB, /*blocks_max=*/8);
  const SpaceEntry& space = store.OpenSpace();
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(i), StoreFixture::Whole(space)).ok());
    ASSERT_LE(store.index->figures().block_count, 8u);
  }
  EXPECT_EQ(store.index->Contains(space.id(), {StoreFixture::Key(13), StoreFixture::Key(12)},
                                  space.whole()),
            (std::vector<bool>{true, false}));
}

TEST(EvictionTest, NamesOfEnginesCountAsBlocks) {
  constexpr uint64_t kBlocksMax = 64;
  StoreFixture store(16_MiB, kBlocksMax);
  const SpaceEntry& space = store.OpenSpace();
  const std::vector<std::byte> hash(32, std::byte{1});
  const EngineNamesRef names = ShareNames({.hash = proto::EngineHash::From(hash, "hash").value(),
                                           .parent = {},
                                           .tokens = std::vector<uint32_t>(96)});
  for (uint64_t i = 1; i <= 100; ++i) {
    ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(i), StoreFixture::Whole(space)).ok());
    store.index->SetNames({space.id(), StoreFixture::Key(i)}, names);
    // A block, and 512 bytes of names.
    ASSERT_LE(store.index->figures().block_count * (1 + names->bytes() / 128), kBlocksMax + 5);
  }
  EXPECT_GE(store.index->figures().block_count, kBlocksMax / 5);
  store.index->Invalidate(space.id());
  for (uint64_t i = 1; i <= kBlocksMax; ++i) {  // nothing of their names is left
    ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(i), StoreFixture::Whole(space)).ok());
  }
  EXPECT_EQ(store.index->figures().block_count, kBlocksMax);
}

TEST(EvictionTest, SaysHowLongBlocksGoUnusedAndWhenTheyAreUsedAgain) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto keys = store.PutChain(space, 2);
  const auto get = [&] {
    return store.RunGet(space, keys[0], StoreFixture::Whole(space)).status();
  };
  const auto value = [&](const std::string& series) {
    MetricCapture metrics;
    store.index->Report(metrics);
    return metrics.Value(series);
  };
  store.clock.Advance(absl::Seconds(1));
  ASSERT_TRUE(get().ok());
  EXPECT_EQ(value("cairn_block_reuse_seconds"), 0) << "it goes on with the put";
  store.clock.Advance(absl::Seconds(90));
  ASSERT_TRUE(get().ok());
  ASSERT_TRUE(get().ok());
  EXPECT_EQ(value("cairn_block_reuse_seconds"), 1);
  EXPECT_EQ(value("cairn_block_reuse_seconds_sum"), 90);
  EXPECT_EQ(value("cairn_evicted_unused_seconds{tier=\"host\"}"), 0);
  store.clock.Advance(absl::Seconds(10));
  store.EvictHost();
  EXPECT_EQ(value("cairn_evicted_unused_seconds{tier=\"host\"}"), 2);
  EXPECT_EQ(value("cairn_evicted_unused_seconds_sum{tier=\"host\"}"), 10 + 101);
}

TEST(WalkTest, ListsInOrderOfKeysInPages) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const SpaceEntry& other = store.OpenSpace("raw", HybridIdentity());
  std::vector<Key> keys = store.PutChain(space, 50);
  PutGroup(store, other, 1, 0);
  std::sort(keys.begin(), keys.end());
  std::vector<Key> listed;
  std::optional<Key> after;
  for (bool has_more = true; has_more;) {
    const auto page = store.index->List(space.id(), after, 7, space.whole(), &has_more);
    ASSERT_FALSE(page.empty());
    EXPECT_EQ(page.size() == 7, has_more || page.size() == 7);
    for (const ListedBlock& block : page) {
      EXPECT_TRUE(block.is_complete);
      EXPECT_EQ(block.images.size(), 1u);
      listed.push_back(block.key);
    }
    after = listed.back();
  }
  EXPECT_EQ(listed, keys);
}

TEST(WalkTest, InvalidateTakesOneSpaceOnly) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const SpaceEntry& other = store.OpenSpace("raw", HybridIdentity());
  store.PutChain(space, 20);
  PutGroup(store, other, 1, 0);
  EXPECT_EQ(store.index->figures(space.id()).block_count, 20u);
  EXPECT_EQ(store.index->Invalidate(space.id()), 20u);
  EXPECT_EQ(store.index->figures(space.id()).block_count, 0u);
  EXPECT_EQ(store.index->figures().block_count, 1u);
  EXPECT_EQ(MatchedBlocks(store, store.Query(space, Keys(20))), 0u);
}

TEST(WalkTest, VerifyFindsWhatIsDamagedAndOnlyThat) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace();
  const auto keys = store.PutChain(space, 100);
  {
    const auto pins = store.index->Lookup({space.id(), keys[42]}, 0, StoreFixture::Whole(space));
    store.host->arena().mapping()[pins[0].extent().offset() + 1000] ^= std::byte{1};
  }
  Upkeep::VerifyProgress last;
  ASSERT_TRUE(store.upkeep
                  ->Verify(0,
                           [&](const Upkeep::VerifyProgress& progress) {
                             last = progress;
                             return true;
                           })
                  .ok());
  EXPECT_EQ(last.images_checked, 100u);
  EXPECT_EQ(last.corrupt_images, 1u);
  EXPECT_EQ(store.index->figures().image_count, 99u);
  EXPECT_FALSE(store.index->Contains(space.id(), {keys[42]}, space.whole())[0]);
}

}  // namespace
}  // namespace cairn
