// SPDX-License-Identifier: Apache-2.0
#include "codecs/recipe/recipe.h"

#include <string>

#include "gtest/gtest.h"

namespace cairn::codecs {
namespace {

TEST(RecipeTest, NamesComeBack) {
  std::string known;
  for (const Recipe& recipe : AllRecipes()) {
    Recipe parsed;
    ASSERT_EQ(ParseRecipe(FormatRecipe(recipe), &parsed), Error::kOk);
    EXPECT_EQ(parsed, recipe);
    EXPECT_TRUE(IsKnown(recipe));
    known += (known.empty() ? "" : ", ") + std::string(FormatRecipe(recipe));
  }
  EXPECT_EQ(known, KnownRecipes());
}

TEST(RecipeTest, ARecipeHasTheRowOfItsFamily) {
  for (const std::string_view name :
       {"raw", "kivi:2+", "exact:fast", "cairn:4.3*9", "cairn-hot:2.4", "patternkv:2:l2", "ott:4",
        "arkv", "arkv:paper", "mixkvq:paper/7b", "logquant:4/log", "fp8"}) {
    Recipe recipe;
    Error error = ParsePolicyRecipe(name, &recipe);
    if (error != Error::kOk) error = ParsePlannedRecipe(name, &recipe);
    ASSERT_EQ(error, Error::kOk) << name;
    EXPECT_EQ(recipe.Traits().id, recipe.id) << name;
    EXPECT_TRUE(name.starts_with(recipe.Traits().family)) << name;
  }
  EXPECT_TRUE(Recipe{.id = RecipeId{99}}.Traits().family.empty());
}

TEST(RecipeTest, OtherNamesAreRefused) {
  Recipe recipe;
  for (const char* name : {"", "kivi", "kivi:", "kivi:3", "kivi:16", "kivi:2++", "kivi:2 ", " raw",
                           "RAW", "raw:16", "exact:", "exact:slow", "kivi:02"}) {
    EXPECT_EQ(ParseRecipe(name, &recipe), Error::kUnknownRecipe) << name;
  }
  EXPECT_EQ(recipe, Recipe{});
}

TEST(RecipeTest, OtherParametersAreUnknown) {
  Recipe recipe;
  ASSERT_EQ(ParseRecipe("kivi:4", &recipe), Error::kOk);
  EXPECT_FALSE(recipe.IsLossless());
  recipe.k_group_tokens = 64;
  EXPECT_FALSE(IsKnown(recipe));
  EXPECT_EQ(FormatRecipe(recipe), "");
  EXPECT_TRUE(Recipe{}.IsLossless());
}

TEST(RecipeTest, CairnHotNeedsAProfileAndHasNoLevels) {
  Recipe recipe;
  EXPECT_EQ(ParseRecipe("cairn-hot:2.4", &recipe), Error::kUnknownRecipe);
  ASSERT_EQ(ParseCairnRecipe("cairn-hot:2.4", &recipe), Error::kOk);
  EXPECT_EQ(recipe.id, RecipeId::kCairnHot);
  EXPECT_EQ(recipe.bits, 24);
  EXPECT_TRUE(recipe.NeedsProfile());
  EXPECT_EQ(FormatRecipe(recipe), "cairn-hot:2.4");
  recipe.level = 1;
  EXPECT_FALSE(IsKnown(recipe));
  for (const char* name :
       {"cairn-hot:0.9", "cairn-hot:6.1", "cairn-hot:2.4*3", "cairn-hot:24", "cairn-hot:"}) {
    EXPECT_EQ(ParseCairnRecipe(name, &recipe), Error::kUnknownRecipe) << name;
  }
}

TEST(RecipeTest, PoliciesNameThoseThatNeedAProfileOrABankToo) {
  Recipe recipe;
  for (const char* name :
       {"raw", "kivi:2+", "exact", "cairn:2.3", "cairn:4.3*9", "patternkv:2", "patternkv:4:l2"}) {
    ASSERT_EQ(ParsePolicyRecipe(name, &recipe), Error::kOk) << name;
    EXPECT_EQ(FormatRecipe(recipe), name);
  }
  EXPECT_FALSE(IsKnown(recipe)) << "a bank says how many patterns there are";
  recipe.patterns = 256;
  EXPECT_TRUE(IsKnown(recipe));
  EXPECT_EQ(FormatRecipe(recipe), "patternkv:4:l2");
  recipe.patterns = 257;
  EXPECT_EQ(FormatRecipe(recipe), "");
  const std::string_view known = KnownRecipes();
  EXPECT_EQ(PolicyRecipes().substr(0, known.size()), known);
  EXPECT_EQ(PolicyRecipes().substr(known.size()),
            ", patternkv:4, patternkv:2, patternkv:4:l2, patternkv:2:l2, cairn:BITS or "
            "cairn-hot:BITS, BITS as 2.3");
  for (const char* name : {"", "cairn", "cairn:", "cairn:2", "cairn:0.9", "cairn:2.30"}) {
    EXPECT_EQ(ParsePolicyRecipe(name, &recipe), Error::kUnknownRecipe) << name;
  }
}

TEST(RecipeTest, CairnNeedsAProfileAndIsNotParsed) {
  Recipe recipe;
  EXPECT_EQ(ParseRecipe("cairn:2.3", &recipe), Error::kUnknownRecipe);
  recipe = {.id = RecipeId::kCairn, .bits = 23};
  EXPECT_TRUE(recipe.NeedsProfile());
  EXPECT_FALSE(recipe.IsLossless());
  EXPECT_EQ(FormatRecipe(recipe), "cairn:2.3");
  recipe.level = 5;
  recipe.bits = 160;
  recipe.multiplier = -4096;
  EXPECT_EQ(FormatRecipe(recipe), "cairn:16.0*243");
  EXPECT_TRUE(IsKnown(recipe));
  recipe.multiplier = -4097;
  EXPECT_FALSE(IsKnown(recipe));
  recipe.multiplier = 0;
  recipe.level = 6;
  EXPECT_FALSE(IsKnown(recipe));
  recipe.level = 0;
  recipe.bits = 9;
  EXPECT_FALSE(IsKnown(recipe));
  EXPECT_FALSE(IsKnown({.id = RecipeId::kCairn, .bits = 23, .is_clipped = true}));
  EXPECT_FALSE(IsKnown({.id = RecipeId::kRaw, .level = 1}));
}

}  // namespace
}  // namespace cairn::codecs
