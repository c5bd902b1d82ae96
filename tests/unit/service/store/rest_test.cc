// SPDX-License-Identifier: Apache-2.0
// Blocks at rest: what they cost, who wakes them, and that nobody else can tell.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "service/index/block_index.h"
#include "service/tier/host_tier.h"
#include "tests/support/lasting_store.h"
#include "tests/support/metric_capture.h"
#include "tests/support/side_object_bytes.h"

namespace cairn {
namespace {

constexpr uint64_t kImageBytes = 200;

class RestTest : public testing::Test {
 protected:
  double Metric(const std::string& name) const {
    MetricCapture metrics;
    store_.index->Report(metrics);
    return metrics.Value(name);
  }
  double AwakeCount() const { return Metric("cairn_index_awake_blocks"); }
  // On the drive only from now on.
  std::vector<proto::BlockKey> PutOnDrive(const SpaceEntry& space, size_t count) {
    const std::vector<proto::BlockKey> keys = store_.PutChain(space, count);
    LeaveMemory();
    return keys;
  }
  void LeaveMemory() {
    store_.WriteAllDown();
    store_.EvictHost();
    ASSERT_EQ(store_.index->figures(TierId::kHost).copy_count, 0u);
  }
  std::vector<ListedBlock> List(const SpaceEntry& space) const {
    bool has_more = false;
    return store_.index->List(space.id(), std::nullopt, 1000, space.whole(), &has_more);
  }
  // Where the block's only image is, as the tier is asked to drop it.
  uint64_t OffsetOf(const SpaceEntry& space, const proto::BlockKey& key, ImageFacts* facts) {
    const CopyPins pins = store_.index->Lookup({space.id(), key}, 0, StoreFixture::Whole(space));
    CAIRN_CHECK(pins.size() == 1);
    *facts = pins[0].facts();
    return pins[0].extent().offset();
  }

  LastingStore store_{std::make_shared<MemoryDisk>()};
};

TEST_F(RestTest, WhatIsOnTheDriveOnlySleepsUntilItIsNeeded) {
  const SpaceEntry& space = store_.OpenSpace("exact");
  const std::vector<proto::BlockKey> keys = store_.PutChain(space, 8);
  EXPECT_EQ(AwakeCount(), 8);
  LeaveMemory();
  EXPECT_EQ(AwakeCount(), 0);

  // Asking wakes nobody.
  EXPECT_EQ(store_.index->Contains(space.id(), keys, space.whole()), std::vector<bool>(8, true));
  EXPECT_EQ(store_.index->Match(store_.Query(space, keys))->blocks.size(), 8u);
  EXPECT_EQ(List(space).size(), 8u);
  EXPECT_EQ(AwakeCount(), 0);

  MatchQuery query = store_.Query(space, keys);
  query.wants_lease = true;
  const auto leased = store_.index->Match(query);
  ASSERT_TRUE(leased.ok() && leased->lease.has_value());
  EXPECT_EQ(AwakeCount(), 8);
  store_.index->Release(query.tenant, {*leased->lease});
  EXPECT_EQ(AwakeCount(), 0);

  CopyPins pins = store_.index->Lookup({space.id(), keys[3]}, 0, StoreFixture::Whole(space));
  EXPECT_EQ(AwakeCount(), 1);
  pins.clear();
  EXPECT_EQ(AwakeCount(), 0);

  // Read, it is in memory again; its parent keeps count of it.
  EXPECT_EQ(store_.Fetch(space, keys[3]),
            StoreFixture::Source(space, keys[3], 0, StoreFixture::Whole(space)));
  EXPECT_EQ(AwakeCount(), 2);
}

TEST_F(RestTest, ItTakesNoMoreThanPromised) {
  constexpr uint64_t kBlocks = 60'000;
  StoreFixture store(16_MiB, kBlocks, 32_MiB, [] {
    std::vector<std::unique_ptr<CopyTier>> tiers;
    tiers.push_back(std::make_unique<MemoryTier>(LastingStore::kTraits, 1_GiB));
    return tiers;
  }());
  const SpaceEntry& space = store.OpenSpace();
  for (uint64_t i = 0; i < kBlocks; ++i) {
    NewImage image = {.claim = {.name = {space.id(), StoreFixture::Key(i + 1)},
                                .parent = i % 4096 == 0 ? proto::BlockKey{} : StoreFixture::Key(i),
                                .first_position = i % 4096 * 16,
                                .tokens = 16,
                                .group = 0,
                                .slice = StoreFixture::Whole(space)},
                      .source_bytes = 16'384,
                      .copy = {.recipe = codecs::AllRecipes().front(),
                               .extent = *store.tiers->Find(TierId::kSsd)->Reserve(kImageBytes),
                               .side_object = {},
                               .directory_crc = static_cast<uint32_t>(i)}};
    const auto published = store.index->Publish(std::move(image));
    ASSERT_TRUE(published.ok() && *published);
  }
  MetricCapture metrics;
  store.index->Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_index_awake_blocks"), 0);
  // Beside it the drive's own map has 8 an image: cairn_index_scale_bench measures both.
  EXPECT_LE(metrics.Value("cairn_index_bytes") / kBlocks, 128 - 8);
}

// What is in memory or leased makes room within the budget, and what is on the drive stays there.
TEST(IndexBytesTest, WhatIsAwakeKeepsToItsBudget) {
  constexpr uint64_t kBudget = 256_KiB, kBlocks = 4000;
  auto made = HostTier::Make({.capacity_bytes = 64_MiB, .staging_bytes = 4_MiB, .fault_in = false});
  ASSERT_TRUE(made.ok());
  std::vector<std::unique_ptr<CopyTier>> others;
  others.push_back(std::make_unique<MemoryTier>(LastingStore::kTraits, 1_GiB));
  Tiers tiers(*std::move(made), std::move(others));
  BlockIndex index({.blocks_max = 10 * kBlocks,
                    .images_max = 10 * kBlocks,
                    .lease_bytes_max = 64_MiB,
                    .awake_bytes_max = kBudget,
                    .bytes_max = 16_MiB},
                   tiers, RealClock::Get());
  // The i-th of a chain.
  const auto publish = [&](CopyTier& tier, uint64_t first, uint64_t i) {
    auto extent = tier.Reserve(kImageBytes);
    CAIRN_CHECK_OK(extent);
    const proto::BlockKey parent = i == 0 ? proto::BlockKey{} : StoreFixture::Key(first + i - 1);
    return index.Publish({.claim = {.name = {1, StoreFixture::Key(first + i)},
                                    .parent = parent,
                                    .first_position = i * 16,
                                    .tokens = 16,
                                    .group = 0,
                                    .slice = {0, 1, 0, 1}},
                          .source_bytes = 4096,
                          .copy = {.recipe = codecs::AllRecipes().front(),
                                   .extent = *std::move(extent),
                                   .side_object = {}}});
  };
  const auto metric = [&](const std::string& name) {
    MetricCapture metrics;
    index.Report(metrics);
    return metrics.Value(name);
  };
  MatchQuery query = {.space_id = 1,
                      .tokens_per_block = 16,
                      .keys = {},
                      .wanted = {{.group = 0, .slice = {0, 1, 0, 1}}},
                      .session_id = 1,
                      .tenant = "acme"};
  for (uint64_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(publish(*tiers.Find(TierId::kSsd), 1, i).ok());
    query.keys.push_back(StoreFixture::Key(1 + i));
  }
  // Alone in memory: they make room for each other, and every put is served.
  for (uint64_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(publish(tiers.host(), 100'000 + i, 0).ok()) << i;
  }
  EXPECT_GT(metric("cairn_evictions_total{tier=\"host\",reason=\"index\"}"), kBlocks / 2);
  EXPECT_GT(index.figures(TierId::kHost).block_count, 100u);
  EXPECT_EQ(index.figures(TierId::kSsd).block_count, kBlocks);
  EXPECT_EQ(metric("cairn_index_bytes_max"), 16_MiB);

  EXPECT_EQ(index.Match(query)->blocks.size(), kBlocks) << "to ask wakes nobody";
  query.wants_lease = true;
  const auto leased = index.Match(query);
  ASSERT_TRUE(leased.ok());
  EXPECT_TRUE(leased->is_shortened_by_pins);
  EXPECT_LT(leased->blocks.size(), kBlocks / 4);
  EXPECT_GT(leased->blocks.size(), 0u);
  // Of records of 200 bytes and more, blocks at rest and buckets included.
  EXPECT_LE(metric("cairn_index_bytes"), 2 * kBudget + 2 * kBlocks * 130.0);
  ASSERT_TRUE(leased->lease.has_value());
  index.Release("acme", {*leased->lease});
}

TEST_F(RestTest, AListSaysTheSameOfThoseAtRest) {
  const codecs::ProfileShape shape = {.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 32};
  SpaceEntry& space = store_.OpenSpace(kProfileCase.recipe);
  ASSERT_TRUE(space.coding()
                  .Install(0, kProfileCase.kind, SideObjectBytes(kProfileCase.kind, 1, shape))
                  .ok());
  const std::vector<proto::BlockKey> keys = PutOnDrive(space, 4);
  const std::vector<ListedBlock> at_rest = List(space);
  std::vector<ImagePins> pins;
  for (const proto::BlockKey& key : keys) {
    pins.push_back(store_.index->PinImages({space.id(), key}));
  }
  EXPECT_EQ(AwakeCount(), 4);
  const std::vector<ListedBlock> awake = List(space);
  ASSERT_EQ(at_rest.size(), 4u);
  for (size_t i = 0; i < at_rest.size(); ++i) {
    EXPECT_EQ(at_rest[i].key, awake[i].key);
    EXPECT_EQ(at_rest[i].parent, awake[i].parent);
    EXPECT_EQ(at_rest[i].child_count, awake[i].child_count);
    EXPECT_TRUE(at_rest[i].is_complete);
    ASSERT_EQ(at_rest[i].images.size(), 1u);
    const ListedImage &before = at_rest[i].images[0], &after = awake[i].images[0];
    EXPECT_EQ(before.facts.first_position, after.facts.first_position);
    EXPECT_EQ(before.facts.source_bytes, after.facts.source_bytes);
    EXPECT_EQ(before.facts.tokens, 16);
    EXPECT_TRUE(before.facts.slice == after.facts.slice);
    EXPECT_EQ(before.copy.tier, TierId::kSsd);
    EXPECT_TRUE(before.copy.recipe == after.copy.recipe);
    EXPECT_EQ(before.copy.image_bytes, after.copy.image_bytes);
    EXPECT_EQ(before.copy.directory_crc, after.copy.directory_crc);
    ASSERT_TRUE(before.side_object.has_value());
    EXPECT_EQ(before.side_object, after.side_object);
    EXPECT_EQ(before.pin_count, 0u);
    EXPECT_EQ(after.pin_count, 1u);
  }
}

TEST_F(RestTest, ASideObjectStaysWhileABlockAtRestNeedsIt) {
  const codecs::ProfileShape shape = {.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 32};
  SpaceEntry& space = store_.OpenSpace(kProfileCase.recipe);
  const auto install = [&](int number) {
    return space.coding().Install(0, kProfileCase.kind,
                                  SideObjectBytes(kProfileCase.kind, number, shape));
  };
  ASSERT_TRUE(install(1).ok());
  const std::vector<proto::BlockKey> keys = PutOnDrive(space, 2);
  ASSERT_TRUE(install(2).ok());
  EXPECT_EQ(space.coding().List().size(), 2u) << "blocks at rest name the first";
  EXPECT_FALSE(store_.Fetch(space, keys[1]).empty());
  store_.index->Invalidate(space.id());
  EXPECT_EQ(space.coding().List().size(), 1u);
}

TEST_F(RestTest, BlocksOfSeveralImagesSleepToo) {
  const SpaceEntry& space = store_.OpenSpace();
  const proto::BlockKey key = StoreFixture::Key(1);
  for (uint16_t head = 0; head < 4; ++head) {
    ASSERT_TRUE(store_.PutSource(space, key, {0, 2, head, 1}).ok());
  }
  LeaveMemory();
  EXPECT_EQ(AwakeCount(), 0);
  EXPECT_EQ(store_.Fetch(space, key),
            StoreFixture::Source(space, key, 0, StoreFixture::Whole(space)));
  store_.EvictHost();
  EXPECT_EQ(AwakeCount(), 0);
  const auto duplicate = store_.PutSource(space, key, {0, 2, 3, 1});
  ASSERT_TRUE(duplicate.ok());
  EXPECT_TRUE(duplicate->is_duplicate);
  ASSERT_EQ(List(space)[0].images.size(), 4u);
  EXPECT_EQ(store_.index->Delete(space.id(), {key}), 1u);
  EXPECT_EQ(store_.lasting.used_bytes(), 0u);
  EXPECT_EQ(store_.index->figures(TierId::kSsd).copy_count, 0u);
}

TEST_F(RestTest, TheDriveMovesAndDropsThoseAtRest) {
  const SpaceEntry& space = store_.OpenSpace();
  const std::vector<proto::BlockKey> keys = PutOnDrive(space, 3);
  ImageFacts facts;
  const uint64_t offset = OffsetOf(space, keys[1], &facts);
  auto to = store_.lasting.Reserve(
      store_.index->Lookup({space.id(), keys[1]}, 0, facts.slice)[0].copy().image_bytes);
  ASSERT_TRUE(to.ok());
  const uint64_t there = to->offset();
  EXPECT_EQ(store_.index->MoveCopy(TierId::kSsd, facts, offset, *to), Evictor::Moved::kMoved);
  EXPECT_EQ(OffsetOf(space, keys[1], &facts), there);
  EXPECT_EQ(AwakeCount(), 0);

  EXPECT_TRUE(store_.index->EvictCopy(TierId::kSsd, facts, offset, EvictionReason::kCapacity))
      << "nothing is where it was";
  EXPECT_EQ(store_.index->figures().block_count, 3u);
  EXPECT_TRUE(store_.index->EvictCopy(TierId::kSsd, facts, there, EvictionReason::kCapacity));
  EXPECT_EQ(store_.index->figures().block_count, 2u);
  // What follows it is of a broken chain, and of a whole one once it is back.
  EXPECT_EQ(store_.index->Match(store_.Query(space, keys))->blocks.size(), 1u);
  ASSERT_TRUE(store_.PutSource(space, keys[1], StoreFixture::Whole(space), keys[0], 16).ok());
  EXPECT_EQ(store_.index->Match(store_.Query(space, keys))->blocks.size(), 3u);
  EXPECT_TRUE(absl::IsInvalidArgument(
      store_.PutSource(space, StoreFixture::Key(99), StoreFixture::Whole(space), keys[2], 16)
          .status()))
      << "a block at rest has its place in the chain";
}

}  // namespace
}  // namespace cairn
