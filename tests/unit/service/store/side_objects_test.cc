// SPDX-License-Identifier: Apache-2.0
// Side objects of each kind: installing, counting, and the paths of put, get and upkeep with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "codecs/image/decode.h"
#include "service/active_backend.h"
#include "tests/support/metric_capture.h"
#include "tests/support/side_object_bytes.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using Form = proto::Form;
constexpr auto kProfile = proto::SideObjectKind::kProfile, kBank = proto::SideObjectKind::kBank;
constexpr codecs::ProfileShape kShape = {.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 32};

Bytes Copied(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

class SideObjectsTest : public testing::TestWithParam<SideObjectCase> {
 protected:
  static std::string Recipe() { return GetParam().recipe; }
  // "cairn"
  static std::string Family() { return Recipe().substr(0, Recipe().find(':')); }
  static Bytes Made(uint64_t seed = 1, const codecs::ProfileShape& shape = kShape) {
    return SideObjectBytes(GetParam().kind, seed, shape);
  }
  SpaceEntry& Open(std::string_view recipe = Recipe(), std::string_view model = "coded") {
    auto identity = StoreFixture::Identity();
    identity.model = std::string(model);
    return store_.OpenSpace(recipe, identity);
  }
  absl::StatusOr<SpaceCoding::Installed> Install(SpaceEntry& space, const Bytes& bytes) {
    return space.coding().Install(0, GetParam().kind, bytes);
  }
  SideObjects& objects() { return store_.side_objects; }
  // The image that get answers with, parsed.
  codecs::ImageSpec SpecOf(const SpaceEntry& space, const proto::BlockKey& key) {
    const auto answer = store_.RunGet(space, key, StoreFixture::Whole(space), Form::kImage);
    CAIRN_CHECK_OK(answer);
    codecs::ImageView view;
    CAIRN_CHECK(codecs::ParseImage(answer->payload, &view) == codecs::Error::kOk);
    return view.spec();
  }
  // What the codec makes of a source and back, without a daemon.
  Bytes Coded(const codecs::ImageSpec& spec, const Bytes& source, const Bytes& side_bytes,
              Bytes* decoded) {
    proto::SideObjectContent side;
    CAIRN_CHECK(proto::SideObjectContent::Parse(*proto::KindOf(side_bytes), side_bytes, &side) ==
                codecs::Error::kOk);
    uint64_t bytes_max = 0;
    CAIRN_CHECK(codecs::MaxImageBytes(spec, &bytes_max) == codecs::Error::kOk);
    Bytes image(bytes_max);
    size_t bytes = 0;
    CAIRN_CHECK(codecs::Encode(ActiveBackend(), spec, source, image, &bytes,
                               {.profile = side.profile(), .bank = side.bank()}) ==
                codecs::Error::kOk);
    image.resize(bytes);
    codecs::ImageView view;
    CAIRN_CHECK(codecs::ParseImage(image, &view) == codecs::Error::kOk);
    decoded->resize(source.size());
    CAIRN_CHECK(codecs::Decode(ActiveBackend(), view, spec.slice, *decoded, side.inputs()) ==
                codecs::Error::kOk);
    return image;
  }

  StoreFixture store_;
};
// Where rates matter, which profiles alone have.
class ProfilesTest : public SideObjectsTest {};

INSTANTIATE_TEST_SUITE_P(Of, SideObjectsTest, testing::Values(kProfileCase, kBankCase), NameOfCase);
INSTANTIATE_TEST_SUITE_P(Of, ProfilesTest, testing::Values(kProfileCase), NameOfCase);

TEST_P(SideObjectsTest, AnObjectIsNamedByItsBytesAndReplacedByTheNext) {
  SpaceEntry& space = Open();
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

TEST_P(SideObjectsTest, WhatDoesNotFitIsRefusedByName) {
  SpaceEntry& space = Open();
  const auto refused = [&](const Bytes& bytes, std::string_view text) {
    const auto status = Install(space, bytes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(text)));
  };
  const std::string none = absl::StrCat("not a ", proto::Name(GetParam().kind));
  refused({}, none);
  refused(Bytes(500), none);
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
  EXPECT_TRUE(absl::IsInvalidArgument(space.coding().Install(1, GetParam().kind, Made()).status()));
  EXPECT_EQ(objects().count(), 0u);
}

TEST_P(ProfilesTest, ARateThatTheProfileLacksIsNamedWithThoseItHas) {
  SpaceEntry& space = Open("cairn:3.0");
  const auto status = Install(space, Made()).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no rate for cairn:3.0; it has cairn:BITS for 2.3, 4.3"));
  ASSERT_TRUE(store_.SetRecipe(space, "cairn:4.3").ok());
  ASSERT_TRUE(Install(space, Made()).ok());
  EXPECT_THAT(std::string(store_.SetRecipe(space, "cairn:3.0").message()),
              HasSubstr("it has cairn:BITS for 2.3, 4.3"));
  EXPECT_EQ(codecs::FormatRecipe(space.recipe()), "cairn:4.3");
  EXPECT_TRUE(absl::IsInvalidArgument(store_.SetRecipe(space, "cairn:0.9")));
  EXPECT_TRUE(store_.SetRecipe(space, "raw").ok());
}

TEST_P(SideObjectsTest, BlocksAreExactBeforeThereIsOneAndCodedWithItAfter) {
  SpaceEntry& space = Open();
  const auto before = StoreFixture::Key(1), after = StoreFixture::Key(2);
  const auto whole = StoreFixture::Whole(space);
  ASSERT_TRUE(store_.PutSource(space, before, whole).ok());
  EXPECT_EQ(codecs::FormatRecipe(SpecOf(space, before).recipe), "exact");
  ASSERT_TRUE(Install(space, Made()).ok());
  ASSERT_TRUE(store_.PutSource(space, after, whole).ok());
  EXPECT_EQ(codecs::FormatRecipe(SpecOf(space, before).recipe), "exact") << "they keep theirs";
  const codecs::ImageSpec spec = SpecOf(space, after);
  EXPECT_EQ(codecs::FormatRecipe(spec.recipe), Recipe());
  Bytes decoded;
  const Bytes image = Coded(spec, StoreFixture::Source(space, after, 0, whole), Made(), &decoded);
  EXPECT_EQ(Copied(store_.RunGet(space, after, whole, Form::kImage)->payload), image);
  EXPECT_EQ(Copied(store_.RunGet(space, after, whole)->payload), decoded);
  EXPECT_EQ(Copied(store_.RunGet(space, before, whole)->payload),
            StoreFixture::Source(space, before, 0, whole));
  MetricCapture metrics;
  store_.puts->Report(metrics);
  store_.index->Report(metrics);
  store_.side_objects.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_put_without_side_object_total"), 1);
  EXPECT_EQ(metrics.Value(absl::StrCat("cairn_recipe_images{recipe=\"", Family(), "\"}")), 1);
  EXPECT_EQ(metrics.Value("cairn_side_objects"), 1);
  EXPECT_EQ(metrics.Value("cairn_side_object_references"), 1);
}

TEST_P(ProfilesTest, CairnHotIsCodedWithTheSameProfile) {
  SpaceEntry& space = Open("cairn-hot:4.0");
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

TEST_P(SideObjectsTest, HalvesOfTwoRanksAreOneImageAndMixedOnesAreDecoded) {
  SpaceEntry& space = Open();
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
  // With another one halves cannot be put together either.
  const auto renewed = StoreFixture::Key(3);
  ASSERT_TRUE(store_.PutSource(space, renewed, kLeft).ok());
  ASSERT_TRUE(Install(space, Made(2)).ok());
  ASSERT_TRUE(store_.PutSource(space, renewed, kRight).ok());
  EXPECT_EQ(codecs::FormatRecipe(SpecOf(space, renewed).recipe), "raw");
  EXPECT_EQ(objects().count(), 2u);
}

TEST_P(SideObjectsTest, AnImageKeepsItsSideObjectUntilTheLastReaderIsDone) {
  SpaceEntry& space = Open();
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

TEST_P(SideObjectsTest, WhatABusyPoolKeptRawIsCodedByUpkeep) {
  SpaceEntry& space = Open();
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
  EXPECT_EQ(codecs::FormatRecipe(spec.recipe), Recipe());
  Bytes decoded;
  Coded(spec, StoreFixture::Source(space, StoreFixture::Key(2), 0, whole), Made(), &decoded);
  EXPECT_EQ(Copied(store_.RunGet(space, StoreFixture::Key(2), whole)->payload), decoded);
  EXPECT_EQ(store_.host->staging_bytes(), 0u);
}

TEST_P(SideObjectsTest, AnImageOfOneThatIsNotThereIsRefused) {
  SpaceEntry& space = Open();
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

TEST_P(SideObjectsTest, OneOfEachKindIsCurrentAndTheRecipeChooses) {
  SpaceEntry& space = Open();
  const auto whole = StoreFixture::Whole(space);
  for (const SideObjectCase& one : {kProfileCase, kBankCase}) {
    ASSERT_TRUE(space.coding().Install(0, one.kind, SideObjectBytes(one.kind, 1, kShape)).ok());
  }
  uint64_t number = 0;
  for (const SideObjectCase& one : {kBankCase, kProfileCase}) {
    ASSERT_TRUE(store_.SetRecipe(space, one.recipe).ok());
    const auto key = StoreFixture::Key(++number);
    ASSERT_TRUE(store_.PutSource(space, key, whole).ok());
    const codecs::ImageSpec spec = SpecOf(space, key);
    EXPECT_EQ(codecs::FormatRecipe(spec.recipe), one.recipe);
    EXPECT_EQ(spec.side_objects[0], proto::SideObjectId(SideObjectBytes(one.kind, 1, kShape)));
  }
  const auto listed = objects().List(space.id());
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_NE(listed[0].kind, listed[1].kind);
  for (const auto& one : listed) EXPECT_EQ(one.references, 1u);
}

TEST_P(SideObjectsTest, AnImageThatNamesOneOfAnotherKindIsRefused) {
  SpaceEntry& space = Open();
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  const auto other = GetParam().kind == kBank ? kProfile : kBank;
  ASSERT_TRUE(Install(space, Made()).ok());
  ASSERT_TRUE(store_.PutSource(space, key, whole).ok());
  codecs::ImageSpec spec = SpecOf(space, key);
  store_.index->Invalidate(space.id());
  const auto wrong = space.coding().Install(0, other, SideObjectBytes(other, 1, kShape));
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  spec.side_objects[0] = wrong->id;
  Bytes decoded;
  const Bytes image = Coded(spec, StoreFixture::Source(space, key, 0, whole), Made(), &decoded);
  const auto refused = store_.RunPut(StoreFixture::PutFrame(space, key, whole, image, Form::kImage),
                                     image, store_.session);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("side object that it names"));
}

TEST_P(SideObjectsTest, BudgetsAreKeptAndGivenBack) {
  SideObjects small({.bytes_max = 8 * Made().size(), .count_max = 100});
  const auto install = [&](std::string_view tenant, uint32_t group, uint64_t seed) {
    return small.Install({1, group, tenant}, *SideObject::Parse(GetParam().kind, Made(seed)))
        .status();
  };
  for (uint32_t group = 0; group < 4; ++group) {
    EXPECT_TRUE(install("a", group, group).ok());
  }
  const absl::Status over = install("a", 4, 4);
  EXPECT_TRUE(absl::IsResourceExhausted(over));
  EXPECT_THAT(std::string(over.message()), HasSubstr("content: side_object_bytes: the tenant"));
  EXPECT_TRUE(install("b", 5, 5).ok()) << "an eighth, beside half";
  EXPECT_TRUE(absl::IsResourceExhausted(install("b", 6, 6)));
  EXPECT_TRUE(install("a", 1, 0).ok()) << "the same bytes again, and the second is dropped";
  EXPECT_TRUE(install("a", 2, 0).ok());
  EXPECT_EQ(small.bytes(), 3 * Made().size());
  EXPECT_TRUE(install("b", 6, 6).ok());
}

TEST_P(SideObjectsTest, CountsAreRightUnderConcurrency) {
  SpaceEntry& space = Open();
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
