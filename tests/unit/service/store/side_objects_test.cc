// SPDX-License-Identifier: Apache-2.0
// Side objects: installing, counting, and the paths of put, get and upkeep with a profile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "codecs/decode.h"
#include "codecs/step_strips.h"
#include "tests/support/metric_capture.h"
#include "tests/support/profile_bytes.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using Form = proto::Form;
constexpr auto kProfile = proto::SideObjectKind::kProfile;
constexpr codecs::ProfileShape kShape = {.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 32};
constexpr codecs::Slice kLeft = {0, 2, 0, 2}, kRight = {0, 2, 2, 2};

Bytes Made(uint64_t seed = 1, const codecs::ProfileShape& shape = kShape) {
  return codecs::ProfileBytes(shape, std::mt19937_64(seed)).bytes();
}

Bytes Copied(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

class SideObjectsTest : public testing::Test {
 protected:
  const SpaceEntry& Cairn(std::string_view model = "cairn") {
    auto identity = StoreFixture::Identity();
    identity.model = std::string(model);
    return store_.OpenSpace("cairn:2.3", identity);
  }
  absl::StatusOr<Spaces::Installed> Install(const SpaceEntry& space, const Bytes& bytes) {
    return store_.spaces.Install(space, 0, kProfile, bytes);
  }
  SideObjects& objects() { return store_.spaces.side_objects(); }
  // The image that get answers with, parsed.
  codecs::ImageSpec SpecOf(const SpaceEntry& space, const proto::BlockKey& key) {
    const auto answer = store_.RunGet(space, key, StoreFixture::Whole(space), Form::kImage);
    CAIRN_CHECK_OK(answer);
    codecs::ImageView view;
    CAIRN_CHECK(codecs::ParseImage(answer->payload, &view) == codecs::Error::kOk);
    return view.spec();
  }
  // What the codec makes of a source and back, without a daemon.
  Bytes Coded(const codecs::ImageSpec& spec, const Bytes& source, const Bytes& profile_bytes,
              Bytes* decoded) {
    codecs::Profile profile;
    CAIRN_CHECK(codecs::ParseProfile(profile_bytes, &profile) == codecs::Error::kOk);
    uint64_t bytes_max = 0;
    CAIRN_CHECK(codecs::MaxImageBytes(spec, &bytes_max) == codecs::Error::kOk);
    Bytes image(bytes_max);
    size_t bytes = 0;
    CAIRN_CHECK(codecs::Encode(store_.get->backend, spec, source, image, &bytes,
                               {.profile = &profile}) == codecs::Error::kOk);
    image.resize(bytes);
    codecs::ImageView view;
    CAIRN_CHECK(codecs::ParseImage(image, &view) == codecs::Error::kOk);
    decoded->resize(source.size());
    CAIRN_CHECK(codecs::Decode(store_.get->backend, view, spec.slice, *decoded,
                               {.profile = &profile}) == codecs::Error::kOk);
    return image;
  }

  StoreFixture store_;
};

TEST_F(SideObjectsTest, AnObjectIsNamedByItsBytesAndReplacedByTheNext) {
  const SpaceEntry& space = Cairn();
  const auto first = Install(space, Made(1));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->is_new);
  EXPECT_EQ(first->id, proto::SideObjectId(Made(1)));
  const auto again = Install(space, Made(1));
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->is_new);
  EXPECT_EQ(objects().count(), 1u);
  EXPECT_EQ(objects().bytes(), Made(1).size());
  ASSERT_TRUE(Install(space, Made(2)).ok());
  EXPECT_EQ(objects().count(), 1u) << "nothing names the first any more";
  const auto listed = objects().List(space.id());
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].id, proto::SideObjectId(Made(2)));
  EXPECT_THAT(listed[0].current_groups, ElementsAre(0u));
  EXPECT_EQ(listed[0].references, 0u);
}

TEST_F(SideObjectsTest, WhatDoesNotFitIsRefusedByName) {
  const SpaceEntry& space = Cairn();
  const auto refused = [&](const Bytes& bytes, std::string_view text) {
    const auto status = Install(space, bytes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(text)));
  };
  refused({}, "not a profile");
  refused(Bytes(500), "not a profile");
  Bytes cut = Made();
  cut.pop_back();
  refused(cut, "truncated");
  Bytes longer = Made();
  longer.push_back({});
  refused(longer, "truncated");
  for (const codecs::ProfileShape& shape :
       {codecs::ProfileShape{.layers = 3, .heads = 4, .k_dim = 32, .v_dim = 32},
        codecs::ProfileShape{.layers = 2, .heads = 5, .k_dim = 32, .v_dim = 32},
        codecs::ProfileShape{.layers = 2, .heads = 4, .k_dim = 16, .v_dim = 32},
        codecs::ProfileShape{.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 0}}) {
    refused(Made(1, shape), "group 0 has 2 layers, 4 heads, dims 32 and 32");
  }
  refused(Bytes(limits::kSideObjectBytesMax + 1), "at most");
  EXPECT_TRUE(absl::IsInvalidArgument(store_.spaces.Install(space, 1, kProfile, Made()).status()));
  EXPECT_EQ(objects().count(), 0u);
}

TEST_F(SideObjectsTest, ARateThatTheProfileLacksIsNamedWithThoseItHas) {
  auto identity = StoreFixture::Identity();
  identity.model = "rate";
  const SpaceEntry& space = store_.OpenSpace("cairn:3.0", identity);
  const auto status = Install(space, Made()).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no rate for cairn:3.0; it has cairn:BITS for 2.3, 4.3"));
  ASSERT_TRUE(store_.spaces.SetRecipe(space.id(), "cairn:4.3").ok());
  ASSERT_TRUE(Install(space, Made()).ok());
  EXPECT_THAT(std::string(store_.spaces.SetRecipe(space.id(), "cairn:3.0").message()),
              HasSubstr("it has cairn:BITS for 2.3, 4.3"));
  EXPECT_EQ(codecs::FormatRecipe(space.recipe()), "cairn:4.3");
  EXPECT_TRUE(absl::IsInvalidArgument(store_.spaces.SetRecipe(space.id(), "cairn:0.9")));
  EXPECT_TRUE(store_.spaces.SetRecipe(space.id(), "raw").ok());
}

TEST_F(SideObjectsTest, BlocksAreExactBeforeAProfileAndCodedWithItAfter) {
  const SpaceEntry& space = Cairn();
  const auto before = StoreFixture::Key(1), after = StoreFixture::Key(2);
  const auto whole = StoreFixture::Whole(space);
  ASSERT_TRUE(store_.PutSource(space, before, whole).ok());
  EXPECT_EQ(codecs::FormatRecipe(SpecOf(space, before).recipe), "exact");
  ASSERT_TRUE(Install(space, Made()).ok());
  ASSERT_TRUE(store_.PutSource(space, after, whole).ok());
  EXPECT_EQ(codecs::FormatRecipe(SpecOf(space, before).recipe), "exact") << "they keep theirs";
  const codecs::ImageSpec spec = SpecOf(space, after);
  EXPECT_EQ(codecs::FormatRecipe(spec.recipe), "cairn:2.3");
  Bytes decoded;
  const Bytes image = Coded(spec, StoreFixture::Source(space, after, 0, whole), Made(), &decoded);
  EXPECT_EQ(Copied(store_.RunGet(space, after, whole, Form::kImage)->payload), image);
  EXPECT_EQ(Copied(store_.RunGet(space, after, whole)->payload), decoded);
  EXPECT_EQ(Copied(store_.RunGet(space, before, whole)->payload),
            StoreFixture::Source(space, before, 0, whole));
  MetricCapture metrics;
  store_.put->Report(metrics);
  store_.index->Report(metrics);
  store_.spaces.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_put_without_profile_total"), 1);
  EXPECT_EQ(metrics.Value("cairn_recipe_images{recipe=\"cairn\"}"), 1);
  EXPECT_EQ(metrics.Value("cairn_side_objects"), 1);
  EXPECT_EQ(metrics.Value("cairn_side_object_references"), 1);
}

TEST_F(SideObjectsTest, CairnHotIsCodedWithTheSameProfile) {
  auto identity = StoreFixture::Identity();
  identity.model = "hot";
  const SpaceEntry& space = store_.OpenSpace("cairn-hot:4.0", identity);
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  const auto installed = Install(space, Made());
  ASSERT_TRUE(installed.ok()) << installed.status();
  ASSERT_TRUE(store_.PutSource(space, key, whole).ok());
  const codecs::ImageSpec spec = SpecOf(space, key);
  EXPECT_EQ(codecs::FormatRecipe(spec.recipe), "cairn-hot:4.0");
  Bytes decoded;
  Coded(spec, StoreFixture::Source(space, key, 0, whole), Made(), &decoded);
  EXPECT_EQ(Copied(store_.RunGet(space, key, whole)->payload), decoded);
}

TEST_F(SideObjectsTest, HalvesOfTwoRanksAreOneImageAndMixedOnesAreDecoded) {
  const SpaceEntry& space = Cairn();
  const auto alike = StoreFixture::Key(1), mixed = StoreFixture::Key(2);
  const auto whole = StoreFixture::Whole(space);
  ASSERT_TRUE(store_.PutSource(space, mixed, kLeft).ok());
  ASSERT_TRUE(Install(space, Made()).ok());
  ASSERT_TRUE(store_.PutSource(space, mixed, kRight).ok());
  ASSERT_TRUE(store_.PutSource(space, alike, kRight).ok());
  ASSERT_TRUE(store_.PutSource(space, alike, kLeft).ok());
  Bytes decoded;
  const Bytes image =
      Coded(SpecOf(space, alike), StoreFixture::Source(space, alike, 0, whole), Made(), &decoded);
  EXPECT_EQ(Copied(store_.RunGet(space, alike, whole, Form::kImage)->payload), image);
  EXPECT_EQ(Copied(store_.RunGet(space, alike, whole)->payload), decoded);
  EXPECT_EQ(codecs::FormatRecipe(SpecOf(space, mixed).recipe), "raw");
  const auto left = store_.RunGet(space, mixed, kLeft);
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(Copied(left->payload), StoreFixture::Source(space, mixed, 0, kLeft));
  // With another profile halves cannot be put together either.
  const auto renewed = StoreFixture::Key(3);
  ASSERT_TRUE(store_.PutSource(space, renewed, kLeft).ok());
  ASSERT_TRUE(Install(space, Made(2)).ok());
  ASSERT_TRUE(store_.PutSource(space, renewed, kRight).ok());
  EXPECT_EQ(codecs::FormatRecipe(SpecOf(space, renewed).recipe), "raw");
  EXPECT_EQ(objects().count(), 2u);
}

TEST_F(SideObjectsTest, AnImageKeepsItsProfileUntilTheLastReaderIsDone) {
  const SpaceEntry& space = Cairn();
  const auto key = StoreFixture::Key(1);
  ASSERT_TRUE(Install(space, Made(1)).ok());
  ASSERT_TRUE(store_.PutSource(space, key, StoreFixture::Whole(space)).ok());
  ASSERT_TRUE(Install(space, Made(2)).ok());
  EXPECT_EQ(objects().count(), 2u);
  EXPECT_EQ(SpecOf(space, key).side_objects[0], proto::SideObjectId(Made(1)));
  auto answer = store_.RunGet(space, key, StoreFixture::Whole(space), Form::kImage);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(store_.index->Delete(space.id(), absl::MakeConstSpan(&key, 1)), 1u);
  EXPECT_EQ(objects().count(), 2u);
  *answer = Answer();
  EXPECT_EQ(objects().count(), 1u);
  EXPECT_EQ(objects().bytes(), Made(2).size());
  for (const auto& one : objects().List(space.id())) EXPECT_EQ(one.references, 0u);
}

TEST_F(SideObjectsTest, WhatABusyPoolKeptRawIsCodedByUpkeep) {
  const SpaceEntry& space = Cairn();
  const auto whole = StoreFixture::Whole(space);
  const auto put = [&](const proto::BlockKey& key) {
    const Bytes source = StoreFixture::Source(space, key, 0, whole);
    const auto frame = StoreFixture::PutFrame(space, key, whole, source);
    ASSERT_TRUE(store_.RunPut(frame, source, store_.session, /*keeps_raw=*/true).ok());
    EXPECT_EQ(codecs::FormatRecipe(SpecOf(space, key).recipe), "raw");
    store_.upkeep->RunOnce();
  };
  put(StoreFixture::Key(1));
  EXPECT_EQ(codecs::FormatRecipe(SpecOf(space, StoreFixture::Key(1)).recipe), "exact");
  ASSERT_TRUE(Install(space, Made()).ok());
  put(StoreFixture::Key(2));
  const codecs::ImageSpec spec = SpecOf(space, StoreFixture::Key(2));
  EXPECT_EQ(codecs::FormatRecipe(spec.recipe), "cairn:2.3");
  Bytes decoded;
  Coded(spec, StoreFixture::Source(space, StoreFixture::Key(2), 0, whole), Made(), &decoded);
  EXPECT_EQ(Copied(store_.RunGet(space, StoreFixture::Key(2), whole)->payload), decoded);
  EXPECT_EQ(store_.host->staging_bytes(), 0u);
}

TEST_F(SideObjectsTest, AnImageOfAProfileThatIsNotThereIsRefused) {
  const SpaceEntry& space = Cairn();
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  ASSERT_TRUE(Install(space, Made(1)).ok());
  ASSERT_TRUE(store_.PutSource(space, key, whole).ok());
  const Bytes image = Copied(store_.RunGet(space, key, whole, Form::kImage)->payload);
  const auto put = [&] {
    return store_.RunPut(StoreFixture::PutFrame(space, key, whole, image, Form::kImage), image,
                         store_.session);
  };
  store_.index->Invalidate(space.id());
  ASSERT_TRUE(put().ok());
  EXPECT_EQ(Copied(store_.RunGet(space, key, whole, Form::kImage)->payload), image);
  store_.index->Invalidate(space.id());
  ASSERT_TRUE(Install(space, Made(2)).ok());
  const codecs::Digest gone = proto::SideObjectId(Made(1));
  const auto refused = put();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr(proto::Hex(std::as_bytes(std::span(gone)))));
}

TEST_F(SideObjectsTest, BudgetsAreKeptAndGivenBack) {
  SideObjects small({.bytes_max = 3 * Made().size(),
                     .bytes_per_tenant_max = 2 * Made().size(),
                     .count_max = 100});
  const auto install = [&](std::string_view tenant, uint32_t group, uint64_t seed) {
    return small.Install({1, group, tenant}, *SideObject::Parse(kProfile, Made(seed))).status();
  };
  EXPECT_TRUE(install("a", 0, 1).ok());
  EXPECT_TRUE(install("a", 1, 2).ok());
  const absl::Status over = install("a", 2, 3);
  EXPECT_TRUE(absl::IsResourceExhausted(over));
  EXPECT_THAT(std::string(over.message()), HasSubstr(absl::StrCat(2 * Made().size())));
  EXPECT_TRUE(install("b", 2, 3).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(install("b", 3, 4)));
  EXPECT_TRUE(install("a", 1, 1).ok()) << "the same bytes again, and the second is dropped";
  EXPECT_EQ(small.bytes(), 2 * Made().size());
  EXPECT_TRUE(install("b", 3, 4).ok());
}

TEST_F(SideObjectsTest, CountsAreRightUnderConcurrency) {
  const SpaceEntry& space = Cairn();
  ASSERT_TRUE(Install(space, Made(0)).ok());
  const auto whole = StoreFixture::Whole(space);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 40; ++i) {
        const auto key = StoreFixture::Key(1 + t * 1000 + i);
        EXPECT_TRUE(store_.PutSource(space, key, whole).ok());
        if (i % 8 == 0) {
          EXPECT_TRUE(Install(space, Made((t + i) % 5)).ok());
        }
        EXPECT_TRUE(store_.RunGet(space, key, whole).ok());
        if (i % 2 == 0) store_.index->Delete(space.id(), absl::MakeConstSpan(&key, 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  store_.index->Invalidate(space.id());
  ASSERT_TRUE(Install(space, Made(9)).ok());
  EXPECT_EQ(objects().count(), 1u);
  EXPECT_EQ(objects().bytes(), Made(9).size());
  EXPECT_EQ(objects().List(space.id())[0].references, 0u);
}

}  // namespace
}  // namespace cairn
