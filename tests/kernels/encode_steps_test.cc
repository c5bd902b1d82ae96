// SPDX-License-Identifier: Apache-2.0
// What kernels encode by a profile is what the CPU does, wherever an engine keeps the source.
#include "tests/kernels/encode_fixture.h"

namespace cairn::kernels {
namespace {

constexpr const char* kRecipes[] = {"cairn:2.3", "cairn-hot:2.4", "cairn:4.3", "cairn-hot:4.5",
                                    "cairn:4.3*9"};

using EncodeStepsTest = EncodeFixture;

TEST_F(EncodeStepsTest, EveryTailOfEveryRecipe) {
  constexpr uint16_t kTokens[] = {1, 2, 15, 16, 31, 32, 33, 64, 97, 127, 128, 129, 200, 300};
  CheckTails(kRecipes, kTokens, 24, 40);
  EXPECT_GT(coded_, 100U);
  EXPECT_GT(with_rows_, 10U);
  EXPECT_GT(low_planes_, 100U);
}

TEST_F(EncodeStepsTest, EveryContentOfEveryShape) {
  const TileShape kShapes[] = {
      Kv(DType::kBf16, 64, 64),
      Kv(DType::kFp16, 9, 8),
      Kv(DType::kFp32, 33, 20),
      Kv(DType::kFp8E4m3, 64, 32),
      {GroupKind::kLatent, DType::kBf16, 160, 0},
  };
  CheckContents(kRecipes, kShapes, 150);
  EXPECT_GT(raw_, 5U);
  EXPECT_GT(coded_, 100U);
  for (const uint32_t strips : {modes_[0], modes_[1]}) EXPECT_GT(strips, 0U);
}

// Heads as engines have them, with and without what a profile may have.
TEST_F(EncodeStepsTest, HeadsOfEngines) {
  for (uint32_t round = 0; round < 6; ++round) {
    const char* recipe = round % 2 == 0 ? "cairn:2.3" : "cairn-hot:2.4";
    CheckImage(MakeImage(recipe, Kv(DType::kBf16, 128, 128), 40, Content::kBell), AnyWholeShape());
    if (HasFailure()) return;
  }
}

// Norms of V of every kind: small ones, equal ones, none, and such as are no numbers.
TEST_F(EncodeStepsTest, SmallNormsAreRows) {
  constexpr uint32_t kDim = 20;
  uint32_t hot = 0;
  const auto some_small = [](uint32_t token, uint32_t channel, float value) {
    if (token % 13 == 2 || token % 13 == 5) return 0.0F;
    if (token % 13 == 9) return channel == 3 ? 0x1p-10F : 0.0F;
    if (token % 13 == 7 && channel == 1) return codecs::BitsFloat(0x7FC00000);
    return value + 1;
  };
  // Nobody's is far below the others'.
  const auto all_alike = [](uint32_t, uint32_t, float) { return 1.5F; };
  // The norm of what has no code is infinite; as the middle one it is far above all others.
  const auto most_none = [](uint32_t token, uint32_t channel, float value) {
    return token % 4 != 1 && channel == 2 ? codecs::BitsFloat(0x7FC00000) : value;
  };
  // The same numbers in another order: which two are the smallest, roundings say.
  const auto turned = [](uint32_t token, uint32_t channel, float) {
    const uint32_t at = (channel + 7 * token) % kDim;
    return (1 + static_cast<float>(at * at % 23) / 7) * (token % 3 == 0 ? 0x1p-7F : 1);
  };
  for (const uint16_t tokens : {1, 2, 3, 40, 131, 40, 131}) {
    SCOPED_TRACE(tokens);
    const char* recipe = hot++ < 5 ? "cairn:4.3" : "cairn-hot:4.5";
    ImageOf image = MakeImage(recipe, Kv(DType::kFp32, 32, kDim), tokens, Content::kBell);
    image.spec.first_position = tokens % 2 == 0 ? 0 : 128;
    SetPlane(1, some_small, &image);
    CheckImage(image, AnyWholeShape());
    SetPlane(1, all_alike, &image);
    CheckImage(image, AnyWholeShape());
    SetPlane(1, turned, &image);
    CheckImage(image, AnyWholeShape());
    SetPlane(1, most_none, &image);
    CheckImage(image, AnyWholeShape());
    if (HasFailure()) return;
  }
  EXPECT_GT(with_rows_, 15U);
}

// Values far from what the profile expects: escapes, and codes that are none.
TEST_F(EncodeStepsTest, ValuesFarFromTheProfile) {
  for (const float factor : {20.0F, 500.0F, 30000.0F}) {
    for (const char* recipe : kRecipes) {
      // All of a strip: there is no room for so many escapes.
      const bool is_strip = factor < 100;
      const DType dtype = is_strip ? DType::kBf16 : DType::kFp32;
      ImageOf image = MakeImage(recipe, Kv(dtype, 32, 32), 140, Content::kBell);
      const auto grow = [&](uint32_t token, uint32_t, float value) {
        return (is_strip ? token < 128 : random_() % 16 == 0) ? value * factor : value;
      };
      for (const uint32_t plane : {0U, 1U}) SetPlane(plane, grow, &image);
      CheckImage(image, AnyWholeShape());
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(escapes_, 1000U);
  EXPECT_GT(with_rows_, 10U);
}

// Strips of rows alone, and such as are much louder or quieter than the profile expects.
TEST_F(EncodeStepsTest, CorrectionsOfStrips) {
  for (const char* recipe : {"cairn-hot:2.4", "cairn-hot:4.5"}) {
    ImageOf image = MakeImage(recipe, Kv(DType::kFp32, 33, 16), 400, Content::kBell);
    const float kFactors[] = {1, 30, 0.01F, codecs::BitsFloat(0x7FC00000)};
    SetPlane(
        0, [&](uint32_t token, uint32_t, float value) { return value * kFactors[token / 128 % 4]; },
        &image);
    CheckImage(image, AnyWholeShape());
    has_silent_v_ = true;  // its tiles have no bytes
    CheckImage(MakeImage(recipe, Kv(DType::kBf16, 32, 32), 40, Content::kBell), AnyWholeShape());
    has_silent_v_ = false;
    if (HasFailure()) return;
  }
}

// Profiles of a batch are each image's own, and a hole in V fails K, too.
TEST_F(EncodeStepsTest, BatchesOfImages) {
  constexpr const char* kMixed[] = {"cairn:2.3", "exact",  "cairn:4.3",
                                    "cairn:2.3", "kivi:2", "cairn-hot:2.4"};
  std::vector<ImageOf> images;
  for (const char* recipe : kMixed) {
    images.push_back(MakeImage(recipe, Kv(DType::kBf16, 32, 24), 140, Content::kFewRows));
  }
  images[2].side = images[0].side;
  ASSERT_EQ(codecs::SetRecipe("cairn:4.3", images[2].Inputs(), {1}, &images[2].spec), Error::kOk);
  Reencode(&images[2]);
  CheckBatch(images, 3);
}

TEST_F(EncodeStepsTest, PlansRefuseSideObjectsThatAreNone) {
  ImageOf image = MakeImage("cairn:2.3", Kv(DType::kBf16, 32, 32), 40, Content::kBell);
  PagedCache cache(image.spec, image.spec.slice, CacheShape{}, random_);
  EncodeJob job = JobOf(image, cache);
  EXPECT_EQ(Encode({job}).error, Error::kOk);
  job.side_object += 8;
  EXPECT_EQ(Encode({job}).error, Error::kInvalidShape);
  job.side_object = nullptr;
  EXPECT_EQ(Encode({job}).error, Error::kInvalidShape);
  job = JobOf(image, cache);
  const auto other = MakeProfile(Kv(DType::kBf16, 16, 32));
  job.side = {.profile = &other->profile};
  EXPECT_EQ(Encode({job}).error, Error::kNoProfile);
  job.side = {};
  EXPECT_EQ(Encode({job}).error, Error::kNoProfile);
}

TEST_F(EncodeStepsTest, PlansHaveFewProfiles) {
  std::vector<ImageOf> images;
  std::vector<std::unique_ptr<PagedCache>> caches;
  std::vector<EncodeJob> jobs;
  for (uint32_t i = 0; i <= kPlanProfilesMax; ++i) {
    images.push_back(MakeImage("cairn:2.3", Kv(DType::kBf16, 8, 8), 8, Content::kBell));
  }
  for (const ImageOf& image : images) {
    caches.push_back(
        std::make_unique<PagedCache>(image.spec, image.spec.slice, CacheShape{}, random_));
    jobs.push_back(JobOf(image, *caches.back()));
  }
  EXPECT_EQ(Encode(jobs).error, Error::kTooLarge);
  jobs.pop_back();
  EXPECT_EQ(Encode(jobs).error, Error::kOk);
}

}  // namespace
}  // namespace cairn::kernels
