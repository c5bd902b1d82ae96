// SPDX-License-Identifier: Apache-2.0
// What a space's policy makes of images on their way into the lasting tier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codecs/transform/demote.h"
#include "service/active_backend.h"
#include "tests/support/lasting_store.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/side_object_bytes.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

class ColdRecipeTest : public testing::Test {
 protected:
  SpaceEntry& Open(std::string_view recipe, std::string_view cold_recipe) {
    SpaceEntry& space = store_.OpenSpace(recipe);
    SetPolicy(space, recipe, cold_recipe);
    return space;
  }
  void SetPolicy(SpaceEntry& space, std::string_view recipe, std::string_view cold_recipe) {
    const auto policy = store_.spaces.PolicyOf(recipe, cold_recipe, 0);
    ASSERT_TRUE(policy.ok()) << policy.status();
    ASSERT_TRUE(space.coding().SetPolicy(*policy).ok());
  }
  // The image that the host tier has of the block.
  std::vector<std::byte> HostImage(const SpaceEntry& space, const proto::BlockKey& key) {
    const auto pins = store_.index->Lookup({space.id(), key}, 0, StoreFixture::Whole(space));
    CAIRN_CHECK(pins.size() == 1 && pins[0].copy().tier == TierId::kHost);
    return {pins[0].bytes().begin(), pins[0].bytes().end()};
  }
  std::vector<std::byte> ColdImage(const proto::BlockKey& key) const {
    const MemoryDisk::Kept* kept = disk_->Find(key);
    return kept == nullptr ? std::vector<std::byte>() : kept->bytes;
  }
  static std::vector<std::byte> Demoted(const std::vector<std::byte>& image,
                                        std::string_view recipe) {
    codecs::ImageView view;
    codecs::Recipe wanted;
    CAIRN_CHECK(codecs::ParseImage(image, &view) == codecs::Error::kOk &&
                codecs::ParseRecipe(recipe, &wanted) == codecs::Error::kOk);
    std::vector<std::byte> target(codecs::DemoteBytesMax(view, wanted));
    size_t bytes = 0;
    CAIRN_CHECK(codecs::Demote(ActiveBackend(), view, wanted, target, &bytes) ==
                codecs::Error::kOk);
    target.resize(bytes);
    return target;
  }
  void EvictHost() {
    store_.EvictHost();
    ASSERT_EQ(store_.index->figures(TierId::kHost).copy_count, 0u);
  }
  std::string RecipeIn(const SpaceEntry& space, const proto::BlockKey& key, TierId tier) {
    const ImagePins images = store_.index->PinImages({space.id(), key});
    const CopyPin pin = images.empty() ? CopyPin() : store_.index->PinCopy(images[0], tier);
    return pin.is_empty() ? "none" : std::string(codecs::FormatRecipe(pin.copy().recipe));
  }
  double Metric(const std::string& series) {
    MetricCapture metrics;
    store_.upkeep->Report(metrics);
    return metrics.Value(series);
  }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  LastingStore store_{disk_};
};

TEST_F(ColdRecipeTest, CopiesAreTheDemotionOfTheImageAndComeUpAsTheyAre) {
  const SpaceEntry& space = Open("kivi:8", "kivi:4");
  const auto keys = store_.PutChain(space, 3);
  std::vector<std::vector<std::byte>> colder;
  for (const auto& key : keys) {
    colder.push_back(Demoted(HostImage(space, key), "kivi:4"));
  }
  store_.WriteAllDown();
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(ColdImage(keys[i]), colder[i]);
    EXPECT_EQ(RecipeIn(space, keys[i], TierId::kHost), "kivi:8");
    EXPECT_EQ(RecipeIn(space, keys[i], TierId::kSsd), "kivi:4");
  }
  EXPECT_EQ(Metric("cairn_write_down_recoded_total"), 3);
  EXPECT_EQ(store_.host->staging_bytes(), 0u);
  EvictHost();
  EXPECT_EQ(store_.index->figures().image_count, 3u) << "it was clean";
  const auto values = store_.Fetch(space, keys[1]);
  EXPECT_EQ(HostImage(space, keys[1]), colder[1]) << "read up as it is";
  EXPECT_EQ(RecipeIn(space, keys[1], TierId::kHost), "kivi:4");
  EXPECT_NE(values, StoreFixture::Source(space, keys[1], 0, StoreFixture::Whole(space)));
  store_.upkeep->RunOnce();
  EXPECT_EQ(Metric("cairn_write_down_recoded_total"), 3) << "it is there";
}

// A deletion of an image that is being encoded for the tier is answered without it: no write
// follows.
TEST_F(ColdRecipeTest, WhatIsDeletedWhileItIsEncodedIsNotWritten) {
  const SpaceEntry& space = Open("kivi:8", "kivi:4");
  const auto keys = store_.PutChain(space, 1);
  store_.lasting.HoldCompletions(true);
  store_.lasting.BeforeReserve([&] {  // the copy is made by then
    store_.index->Delete(space.id(), keys);
    EXPECT_TRUE(store_.tiers->AwaitFreed(MonotonicNow() + absl::Seconds(10)));
  });
  store_.upkeep->RunOnce();
  EXPECT_TRUE(store_.lasting.waiting().empty()) << "its record would come back after a kill";
  store_.lasting.CompleteAll();
  EXPECT_EQ(store_.lasting.used_bytes(), 0u);
  EXPECT_EQ(Metric("cairn_write_downs_total{outcome=\"gone\"}"), 1);
  EXPECT_EQ(store_.upkeep->unwritten_count(), 0u);
}

TEST_F(ColdRecipeTest, ARestartFindsThemInTheirOwnRecipeAndThePolicyToo) {
  const auto keys = [&] {
    const SpaceEntry& space = Open("kivi:8", "kivi:2");
    auto put = store_.PutChain(space, 2);
    store_.WriteAllDown();
    return put;
  }();
  const auto colder = ColdImage(keys[0]);
  store_.Kill();
  LastingStore next(disk_);
  SpaceEntry& space = next.OpenSpace("kivi:8");
  const SpacePolicy policy = space.coding().policy();
  ASSERT_TRUE(policy.cold_recipe.has_value());
  EXPECT_EQ(codecs::FormatRecipe(*policy.cold_recipe), "kivi:2");
  next.Fetch(space, keys[0]);
  const auto pins = next.index->Lookup({space.id(), keys[0]}, 0, StoreFixture::Whole(space));
  ASSERT_EQ(pins.size(), 1u);
  EXPECT_TRUE(std::ranges::equal(pins[0].bytes(), colder));
}

TEST_F(ColdRecipeTest, StepsOfAProfileAreWidened) {
  const codecs::ProfileShape shape = {.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 32};
  SpaceEntry& space = Open("cairn:2.3", "cairn:2.3*3");
  const auto profile = SideObjectBytes(proto::SideObjectKind::kProfile, 1, shape);
  ASSERT_TRUE(space.coding().Install(0, proto::SideObjectKind::kProfile, profile).ok());
  const auto keys = store_.PutChain(space, 2);
  ASSERT_EQ(RecipeIn(space, keys[0], TierId::kHost), "cairn:2.3");
  store_.WriteAllDown();
  EXPECT_EQ(RecipeIn(space, keys[0], TierId::kSsd), "cairn:2.3*3");
  EXPECT_EQ(disk_->copies.begin()->second.side_object, proto::SideObjectId(profile));
  const auto host = HostImage(space, keys[0]);
  codecs::ImageView view;
  ASSERT_EQ(codecs::ParseImage(host, &view), codecs::Error::kOk);
  std::vector<std::byte> target(2 * host.size() + 65536);
  size_t bytes = 0;
  const SideObjectRef current = space.coding().Find(proto::SideObjectId(profile));
  ASSERT_EQ(codecs::DemoteSteps(view, *current.profile(), 1, target, &bytes), codecs::Error::kOk);
  target.resize(bytes);
  EXPECT_EQ(ColdImage(keys[0]), target);
  EvictHost();
  EXPECT_FALSE(store_.Fetch(space, keys[1]).empty());
}

TEST_F(ColdRecipeTest, WhatWasPutWithoutLossStaysSo) {
  SpaceEntry& space = store_.OpenSpace("exact");
  const auto keys = store_.PutChain(space, 1);
  SetPolicy(space, "kivi:8", "kivi:4");
  store_.WriteAllDown();
  EXPECT_EQ(RecipeIn(space, keys[0], TierId::kSsd), "exact");
  EvictHost();
  EXPECT_EQ(store_.Fetch(space, keys[0]),
            StoreFixture::Source(space, keys[0], 0, StoreFixture::Whole(space)));
}

TEST_F(ColdRecipeTest, RawGoesDownAsExact) {
  const SpaceEntry& space = Open("raw", "exact");
  const auto keys = store_.PutChain(space, 1);
  store_.WriteAllDown();
  EXPECT_EQ(RecipeIn(space, keys[0], TierId::kSsd), "exact");
  EXPECT_LT(ColdImage(keys[0]).size(), HostImage(space, keys[0]).size());
  EvictHost();
  EXPECT_EQ(store_.Fetch(space, keys[0]),
            StoreFixture::Source(space, keys[0], 0, StoreFixture::Whole(space)));
}

TEST_F(ColdRecipeTest, WhatIsDamagedIsNotSealedWithGoodChecksums) {
  const SpaceEntry& space = Open("kivi:8", "kivi:4");
  const auto keys = store_.PutChain(space, 2);
  {
    const auto pins = store_.index->Lookup({space.id(), keys[1]}, 0, StoreFixture::Whole(space));
    store_.host->arena().mapping()[pins[0].extent().offset() + pins[0].bytes().size() - 1] ^=
        std::byte{4};
  }
  const LogCapture log;
  store_.WriteAllDown();
  EXPECT_EQ(disk_->copies.size(), 1u);
  EXPECT_TRUE(ColdImage(keys[1]).empty());
  EXPECT_EQ(Metric("cairn_corrupt_tiles_total{where=\"upkeep\"}"), 1);
}

// A lease is of the image: its bytes may be demoted, moved and read up meanwhile.
TEST_F(ColdRecipeTest, ALeaseHoldsAcrossTheWayDownAndBack) {
  const SpaceEntry& space = Open("kivi:8", "kivi:4");
  const auto keys = store_.PutChain(space, 4);
  const auto match = store_.index->Match(store_.Query(space, keys, /*wants_lease=*/true));
  ASSERT_TRUE(match.ok());
  ASSERT_EQ(match->blocks.size(), 4u);
  store_.WriteAllDown();
  EvictHost();
  for (const auto& [offset, kept] : disk_->copies) {
    EXPECT_FALSE(
        store_.index->EvictCopy(TierId::kSsd, kept.image, offset, EvictionReason::kCapacity))
        << "the last copy of a leased block";
  }
  for (const auto& key : keys) {
    EXPECT_FALSE(store_.Fetch(space, key).empty());
  }
  store_.index->Release("acme", {*match->lease});
  EXPECT_EQ(store_.index->leased_bytes(), 0u);
}

TEST_F(ColdRecipeTest, WaysThatAreNotExactAreRefused) {
  const auto refusal = [&](std::string_view recipe, std::string_view cold) {
    return std::string(store_.spaces.PolicyOf(recipe, cold, 0).status().message());
  };
  EXPECT_THAT(refusal("exact", "kivi:4"), HasSubstr("is lossy, but the space's recipe"));
  EXPECT_THAT(refusal("raw", "cairn:2.3"), HasSubstr("is lossy, but the space's recipe"));
  EXPECT_THAT(refusal("kivi:4", "kivi:8"), HasSubstr("no exact conversion from kivi:4 to kivi:8"));
  EXPECT_THAT(refusal("kivi:4", "fp8"), HasSubstr("no exact conversion"));
  EXPECT_THAT(refusal("cairn:4.3*3", "cairn:4.3"), HasSubstr("no exact conversion"));
  EXPECT_THAT(refusal("kivi:8", "zip"), HasSubstr("cold_recipe: one of raw"));
  for (const auto& [recipe, cold] :
       std::initializer_list<std::pair<const char*, const char*>>{{"kivi:8", "kivi:4"},
                                                                  {"kivi:8+", "kivi:2+"},
                                                                  {"logquant:4", "logquant:2"},
                                                                  {"patternkv:4", "patternkv:2"},
                                                                  {"cairn:4.3", "cairn:4.3*9"},
                                                                  {"raw", "exact"},
                                                                  {"exact", "exact"}}) {
    EXPECT_EQ(refusal(recipe, cold), "") << recipe << " " << cold;
  }
}

}  // namespace
}  // namespace cairn
