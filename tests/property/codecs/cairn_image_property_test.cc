// SPDX-License-Identifier: Apache-2.0
// Images of the recipe `cairn`: headers say nothing else, rates are the profile's, levels nest.

#include <string>

#include "codecs/transform/demote.h"
#include "tests/property/codecs/profiled_images.h"

namespace cairn::codecs {
namespace {

class CairnImagePropertyTest : public testing::Test, protected ProfiledImages {
 protected:
  CairnImagePropertyTest() : ProfiledImages("cairn:2.3") {}
};

TEST_F(CairnImagePropertyTest, RatesAreTheProfiles) {
  Bytes target(image_.size() + source_.size());
  size_t bytes = 0;
  ProfileShape without = kShape;
  without.rope = RopeKind::kNone;
  without.rotary_dims = 0;
  const Bytes other_bytes = ProfileBytes(without, SeededRandom(1)).bytes();
  Profile other;
  ASSERT_EQ(ParseProfile(other_bytes, &other), Error::kOk);
  EXPECT_EQ(DemoteSteps(ParseOrFail(image_), other, 1, target, &bytes), Error::kNoProfile);
  ImageSpec moved = spec_;
  moved.recipe.multiplier = 1;
  EXPECT_FALSE(IsCodableWith(moved, &profile_));
  EXPECT_EQ(SetCairn(profile_, kId, 24, 0, &moved), Error::kUnknownRecipe);
  EXPECT_EQ(SetCairn(profile_, kId, 23, 6, &moved), Error::kUnknownRecipe);
  moved = spec_;
  moved.tile = {GroupKind::kState, DType::kBytes, 32, 0};
  EXPECT_EQ(Validate(moved), Error::kInvalidShape);
}

TEST_F(CairnImagePropertyTest, HeadersSayNothingElse) {
  EXPECT_EQ(ParsedWith<uint8_t>(header::kLevel, 5), Error::kOk);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kLevel, 6), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<int16_t>(header::kMultiplier, -4096), Error::kOk);
  EXPECT_EQ(ParsedWith<int16_t>(header::kMultiplier, 4097), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kRecipeBits, 9), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kRecipeBits, 161), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kRecipeFlags, 1), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kTables, 1), Error::kBadPadding);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kParamsTail, 1), Error::kBadPadding);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kDomain, 2), Error::kOk);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kDomain, 3), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kSideObjectCount, 0), Error::kBadPadding);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kSideObjectCount, 2), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint16_t>(PrefixBytes(0) + directory::kForm, 2), Error::kBadDirectory);
  EXPECT_EQ(ParsedWith<uint16_t>(PrefixBytes(0) + directory::kRows, 201), Error::kBadDirectory);
}

TEST_F(CairnImagePropertyTest, LevelsAreReachedFromBelow) {
  const ImageView view = ParseOrFail(image_);
  for (uint32_t level = 1; level <= kStepLevelMax; ++level) {
    ImageSpec spec = spec_;
    ASSERT_EQ(SetCairn(profile_, kId, 23, level, &spec), Error::kOk);
    Bytes demoted(image_.size());
    size_t bytes = 0;
    ASSERT_EQ(DemoteSteps(view, profile_, level, demoted, &bytes), Error::kOk);
    demoted.resize(bytes);
    EXPECT_EQ(demoted, Encoded(spec, source_)) << level;
    EXPECT_EQ(FormatRecipe(ParseOrFail(demoted).spec().recipe),
              "cairn:2.3*" + std::to_string(PowerOf3(level)));
    Bytes again(image_.size());
    EXPECT_EQ(DemoteSteps(ParseOrFail(demoted), profile_, level, again, &bytes),
              Error::kNotDemotable);
  }
  Bytes target(DemoteBytesMax(view, Recipe{}));
  size_t bytes = 0;
  for (const Recipe& recipe : AllRecipes()) {
    EXPECT_EQ(Demote(BestBackend(), view, recipe, target, &bytes), Error::kNotDemotable);
  }
  ASSERT_EQ(Demote(BestBackend(), view, spec_.recipe, target, &bytes), Error::kOk);
  target.resize(bytes);
  EXPECT_EQ(target, image_);
}

TEST_F(CairnImagePropertyTest, OtherRecipesDoNotBecomeIt) {
  ImageSpec spec = MakeSpec(DType::kBf16, kWhole, 200, 32, 24, RecipeNamed("exact"));
  const Bytes image = EncodeOrFail(BestBackend(), spec, source_);
  const ImageView view = ParseOrFail(image);
  Bytes target(DemoteBytesMax(view, spec_.recipe));
  size_t bytes = 0;
  EXPECT_EQ(Demote(BestBackend(), view, spec_.recipe, target, &bytes), Error::kNotDemotable);
  EXPECT_EQ(DemoteSteps(view, profile_, 1, target, &bytes), Error::kNotDemotable);
}

}  // namespace
}  // namespace cairn::codecs
