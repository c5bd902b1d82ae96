// SPDX-License-Identifier: Apache-2.0
// What outlives the process: spaces, side objects and blocks in a lasting tier.
#include "service/recovery.h"

#include <gtest/gtest.h>

#include "tests/support/lasting_store.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/side_object_bytes.h"

namespace cairn {
namespace {

using Drop = Restorer::Drop;

const codecs::ProfileShape kSpaceShape = {.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 32};

TEST(RecoveryTest, BlocksAreFoundAgainUnderANewNumber) {
  const auto disk = std::make_shared<MemoryDisk>();
  uint64_t former = 0;
  std::vector<proto::BlockKey> keys;
  {
    LastingStore store(disk);
    const SpaceEntry& space = store.OpenSpace("exact");
    former = space.id();
    keys = store.PutChain(space, 8);
    store.WriteAllDown();
    store.Kill();
  }
  LastingStore store(disk);
  EXPECT_EQ(store.restorer.space_count(), 1u);
  EXPECT_EQ(store.restorer.image_count(), 8u);
  const SpaceEntry& space = store.OpenSpace("raw");
  EXPECT_NE(space.id(), former);
  EXPECT_EQ(codecs::FormatRecipe(space.recipe()), "exact") << "the space keeps its policy";
  const auto match = store.index->Match(store.Query(space, keys));
  ASSERT_TRUE(match.ok());
  ASSERT_EQ(match->blocks.size(), 8u);
  EXPECT_EQ(match->blocks[7].tier, TierId::kSsd);
  for (const proto::BlockKey& key : keys) {
    EXPECT_EQ(store.Fetch(space, key), StoreFixture::Source(space, key, 0, store.Whole(space)));
  }
  // Chains are known again: a child in the wrong place is refused.
  EXPECT_TRUE(absl::IsInvalidArgument(
      store.PutSource(space, StoreFixture::Key(99), store.Whole(space), keys[3], 16).status()));
  EXPECT_TRUE(store.PutSource(space, StoreFixture::Key(99), store.Whole(space), keys[3], 64).ok());
}

// A device has come back, and has what a Match waits for.
TEST(RecoveryTest, WhoWaitsForABlockIsToldWhenADeviceBringsIt) {
  class NoSideObjects final : public SideObjectSource {
    absl::StatusOr<std::vector<std::byte>> Read(const codecs::Digest&) override {
      return absl::NotFoundError("there are none");
    }
  };
  const auto disk = std::make_shared<MemoryDisk>();
  LastingStore store(disk);
  const SpaceEntry& space = store.OpenSpace();
  const auto keys = store.PutChain(space, 2);
  store.WriteAllDown();
  const SpaceRecord record = disk->spaces.at(space.fingerprint());
  const MemoryDisk::Kept kept = *disk->Find(keys[1]);
  store.index->Delete(space.id(), {keys[1]});
  size_t found_count = 0;
  store.index->MatchWhenReady(
      store.Query(space, keys), absl::InfiniteFuture(),
      [&](const absl::StatusOr<MatchAnswer>& answer) { found_count = answer->blocks.size(); });
  EXPECT_EQ(store.index->waiter_count(), 1u);
  NoSideObjects none;
  FoundImage image = {.image = kept.image,
                      .parent = kept.parent,
                      .recipe = kept.copy.recipe,
                      .directory_crc = kept.copy.directory_crc,
                      .side_object = kept.side_object,
                      .place = *store.lasting.Reserve(kept.bytes.size())};
  image.image.space_id = store.restorer.FoundSpace(record, none);
  ASSERT_EQ(image.image.space_id, space.id());
  std::vector<FoundImage> images;
  images.push_back(std::move(image));
  store.restorer.FoundImages(std::move(images), none);
  EXPECT_EQ(found_count, 2u);
  EXPECT_EQ(store.index->waiter_count(), 0u);
}

TEST(RecoveryTest, DeletedBlocksStayGone) {
  const auto disk = std::make_shared<MemoryDisk>();
  {
    LastingStore store(disk);
    const SpaceEntry& space = store.OpenSpace();
    store.PutChain(space, 4);
    store.WriteAllDown();
    store.index->Delete(space.id(), {StoreFixture::Key(4)});
    store.Kill();
  }
  LastingStore store(disk);
  EXPECT_EQ(store.restorer.image_count(), 3u);
}

TEST(RecoveryTest, ABlockThatIsDeletedWhileItIsReadStaysGone) {
  const auto disk = std::make_shared<MemoryDisk>();
  {
    LastingStore store(disk);
    const SpaceEntry& space = store.OpenSpace();
    const auto keys = store.PutChain(space, 2);
    store.WriteAllDown();
    const codecs::Slice whole = store.Whole(space);
    store.EvictHost();
    CopyPins reader = store.index->Lookup({space.id(), keys[1]}, 0, whole);
    ASSERT_EQ(reader.size(), 1u);
    const uint64_t used_bytes = store.lasting.used_bytes();
    store.index->Delete(space.id(), {keys[1]});
    EXPECT_EQ(store.lasting.used_bytes(), used_bytes) << "its place is read";
    store.Kill();
    reader.clear();
    EXPECT_LT(store.lasting.used_bytes(), used_bytes);
  }
  LastingStore store(disk);
  EXPECT_EQ(store.restorer.image_count(), 1u);
}

class RecoveredSideObjects : public testing::TestWithParam<SideObjectCase> {};
INSTANTIATE_TEST_SUITE_P(, RecoveredSideObjects, testing::Values(kProfileCase, kBankCase),
                         NameOfCase);

TEST_P(RecoveredSideObjects, AreCurrentAgainOrNamedByImagesAlone) {
  const auto kind = GetParam().kind;
  const auto disk = std::make_shared<MemoryDisk>();
  const auto first = SideObjectBytes(kind, 1, kSpaceShape),
             second = SideObjectBytes(kind, 2, kSpaceShape);
  std::vector<std::byte> before;
  {
    LastingStore store(disk);
    SpaceEntry& space = store.OpenSpace(GetParam().recipe);
    ASSERT_TRUE(space.coding().Install(0, kind, first).ok());
    ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(1), store.Whole(space)).ok());
    ASSERT_TRUE(space.coding().Install(0, kind, second).ok());
    ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(2), store.Whole(space)).ok());
    store.WriteAllDown();
    before = store.Fetch(space, StoreFixture::Key(1));
    store.Kill();
  }
  LastingStore store(disk);
  ASSERT_EQ(store.restorer.image_count(), 2u);
  SpaceEntry& space = store.OpenSpace();
  const auto listed = space.coding().List();
  ASSERT_EQ(listed.size(), 2u);
  for (const SideObjects::Listed& one : listed) {
    const bool is_second = one.id == proto::SideObjectId(second);
    EXPECT_EQ(one.current_groups.size(), is_second ? 1u : 0u);
    EXPECT_EQ(one.references, 1u) << "its image";
    if (is_second) {
      EXPECT_EQ(one.origin, SideObjectOrigin::kInstalled);
    }
  }
  EXPECT_EQ(store.Fetch(space, StoreFixture::Key(1)), before);
  ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(3), store.Whole(space)).ok());
  EXPECT_EQ(store.index->Lookup({space.id(), StoreFixture::Key(3)}, 0, store.Whole(space))[0]
                .side_object()
                ->id(),
            proto::SideObjectId(second))
      << "the next put is coded with it";
  // The other one goes with its image.
  store.index->Delete(space.id(), {StoreFixture::Key(1)});
  EXPECT_EQ(space.coding().List().size(), 1u);
}

TEST_P(RecoveredSideObjects, ThoseThatAreGoneTakeTheirImagesAlong) {
  const auto disk = std::make_shared<MemoryDisk>();
  {
    LastingStore store(disk);
    SpaceEntry& space = store.OpenSpace(GetParam().recipe);
    ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(1), store.Whole(space)).ok());
    ASSERT_TRUE(space.coding()
                    .Install(0, GetParam().kind, SideObjectBytes(GetParam().kind, 1, kSpaceShape))
                    .ok());
    ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(2), store.Whole(space)).ok());
    store.WriteAllDown();
    store.Kill();
  }
  disk->side_objects.clear();
  const LogCapture log;
  LastingStore store(disk);
  EXPECT_EQ(store.restorer.image_count(), 1u);
  EXPECT_EQ(store.restorer.dropped(Drop::kSideObject), 1u);
  EXPECT_EQ(disk->copies.size(), 1u) << "its place is free";
  EXPECT_EQ(log.Count("images_dropped=side_object:1"), 1u);
  MetricCapture metrics;
  store.restorer.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_recovery_dropped_total{cause=\"side_object\"}"), 1);
}

TEST(RecoveryTest, AFreshStartHasNothingToRecover) {
  const LogCapture log;
  const LastingStore store(std::make_shared<MemoryDisk>());
  EXPECT_EQ(log.Count("nothing to recover"), 1u);
  EXPECT_EQ(log.Count("images_dropped"), 0u) << "zeros say nothing";
}

TEST(RecoveryTest, WhatATierSaysIsNotBelieved) {
  const auto disk = std::make_shared<MemoryDisk>();
  {
    LastingStore store(disk);
    const SpaceEntry& space = store.OpenSpace();
    store.PutChain(space, 6);
    store.WriteAllDown();
    store.Kill();
  }
  const auto at = [&](uint64_t number) -> MemoryDisk::Kept& {
    for (auto& [offset, kept] : disk->copies) {
      if (kept.image.key == StoreFixture::Key(number)) {
        return kept;
      }
    }
    CAIRN_CHECK(false);
    return disk->copies.begin()->second;
  };
  at(2).image.tokens = 17;
  at(3).image.group = 1;
  at(4).image.source_bytes += 1;
  at(5).image.key = at(1).image.key;  // a duplicate, but for its position
  at(6).image.first_position = 3;     // not 16 behind what its parent says
  at(6).parent = StoreFixture::Key(1);
  LastingStore store(disk);
  EXPECT_EQ(store.restorer.image_count(), 1u);
  EXPECT_EQ(store.restorer.dropped(Drop::kShape), 3u);
  EXPECT_EQ(store.restorer.dropped(Drop::kChain), 2u);
  EXPECT_EQ(disk->copies.size(), 1u);
}

TEST(RecoveryTest, ASpaceThatIsNotItsIdentityIsNotRestored) {
  const auto disk = std::make_shared<MemoryDisk>();
  {
    LastingStore store(disk);
    const SpaceEntry& space = store.OpenSpace();
    store.PutChain(space, 2);
    store.WriteAllDown();
    store.Kill();
  }
  disk->spaces.begin()->second.identity.tenant = "another";
  LastingStore store(disk);
  EXPECT_EQ(store.restorer.space_count(), 0u);
  EXPECT_EQ(store.restorer.dropped(Drop::kSpace), 2u);
  EXPECT_TRUE(disk->copies.empty());
}

TEST(RecoveryTest, OfTwoDevicesTheFirstSaysWhatIsCurrentButForWhatWasMined) {
  StoreFixture store;
  Restorer restorer(store.spaces, *store.index, store.clock);
  struct Source final : SideObjectSource {
    absl::StatusOr<std::vector<std::byte>> Read(const codecs::Digest& id) override {
      for (const auto& bytes : objects) {
        if (proto::SideObjectId(bytes) == id) {
          return bytes;
        }
      }
      return absl::NotFoundError("");
    }
    std::vector<std::vector<std::byte>> objects;
  } source;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    source.objects.push_back(SideObjectBytes(proto::SideObjectKind::kProfile, seed, kSpaceShape));
  }
  SpaceRecord record;
  record.identity = StoreFixture::Identity();
  record.fingerprint = proto::FingerprintOf(record.identity);
  record.recipe = "cairn:2.3";
  const auto found = [&](size_t object, bool is_mined) {
    record.current = {{.id = proto::SideObjectId(source.objects[object]), .is_mined = is_mined}};
    return restorer.FoundSpace(record, source);
  };
  const auto current = [&](uint64_t id) {
    const auto snapshot = (*store.spaces.Find(id))->Describe();
    CAIRN_CHECK(snapshot.record.current.size() == 1);
    return snapshot.record.current[0].id;
  };
  const uint64_t id = found(0, /*is_mined=*/true);
  ASSERT_NE(id, 0u);
  EXPECT_EQ(found(1, /*is_mined=*/true), id);
  EXPECT_EQ(current(id), proto::SideObjectId(source.objects[0]));
  found(2, /*is_mined=*/false);
  EXPECT_EQ(current(id), proto::SideObjectId(source.objects[2]));
  found(1, /*is_mined=*/false);
  EXPECT_EQ(current(id), proto::SideObjectId(source.objects[2]));
  EXPECT_EQ(restorer.space_count(), 1u);
}

TEST(SpaceRecordTest, AnotherVersionWithEachChange) {
  StoreFixture store;
  SpaceEntry& space = store.OpenSpace("cairn:2.3");
  const auto profile = SideObjectBytes(proto::SideObjectKind::kProfile, 1, kSpaceShape);
  const auto first = space.Describe().record;
  EXPECT_EQ(first.recipe, "cairn:2.3");
  EXPECT_EQ(first.fingerprint, space.fingerprint());
  EXPECT_TRUE(first.current.empty());
  EXPECT_EQ(space.Describe().record.version, first.version);
  const auto installed =
      space.coding().Install(0, proto::SideObjectKind::kProfile, profile, SideObjectOrigin::kMined);
  ASSERT_TRUE(installed.ok());
  const auto second = space.Describe();
  EXPECT_GT(second.record.version, first.version);
  ASSERT_EQ(second.record.current.size(), 1u);
  EXPECT_TRUE(second.record.current[0].is_mined);
  EXPECT_EQ(second.side_objects[0].get()->id(), installed->id);
  EXPECT_FALSE(space.coding().Withdraw(0, codecs::Digest{}));
  EXPECT_EQ(space.coding().version(), second.record.version) << "nothing changed";
  EXPECT_TRUE(space.coding().Withdraw(0, installed->id));
  EXPECT_GT(space.coding().version(), second.record.version);
  const uint64_t withdrawn = space.coding().version();
  ASSERT_TRUE(store.SetRecipe(space, "exact").ok());
  EXPECT_GT(space.coding().version(), withdrawn);
  auto other = StoreFixture::Identity();
  other.model = "other";
  EXPECT_GT(store.OpenSpace("exact", other).coding().version(), withdrawn) << "of the process";
}

}  // namespace
}  // namespace cairn
