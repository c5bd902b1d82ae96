// SPDX-License-Identifier: Apache-2.0
// The table of tile forms: every form that a recipe writes is in it, whole, and no other number is.
#include "codecs/forms/form.h"

#include <set>
#include <string_view>
#include <vector>

#include "codecs/forms/affine.h"
#include "gtest/gtest.h"

namespace cairn::codecs {
namespace {

TEST(FormsTest, WhatRecipesWriteIsInTheTable) {
  std::vector<Recipe> recipes(AllRecipes().begin(), AllRecipes().end());
  recipes.push_back({.id = RecipeId::kCairn, .bits = 23});
  recipes.push_back({.id = RecipeId::kCairnHot, .bits = 24});
  for (const Recipe& recipe : recipes) {
    for (const Plane plane : {Plane::kK, Plane::kV, Plane::kLatent}) {
      const uint16_t id = CodedForm({plane, DType::kBf16, 128, 64}, recipe);
      const Form* form = FormOf(id);
      ASSERT_NE(form, nullptr) << FormatRecipe(recipe);
      EXPECT_NE(form->layout, nullptr) << form->name;
      EXPECT_NE(form->encode, nullptr) << form->name;
      EXPECT_NE(form->decode, nullptr) << form->name;
      EXPECT_NE(form->verify, nullptr) << form->name;
    }
  }
}

TEST(FormsTest, NumbersAreTheForms) {
  std::set<std::string_view> names;
  for (uint16_t id = 0; id < kFormCount; ++id) {
    const Form* form = FormOf(id);
    ASSERT_NE(form, nullptr) << id;
    EXPECT_TRUE(names.insert(form->name).second) << form->name;
  }
  for (uint16_t id = kFormCount; id < 256; ++id) {
    EXPECT_EQ(FormOf(id), nullptr) << id;
  }
}

TEST(FormsTest, OnlyTheRecipesOwnFormHasALayout) {
  const TileGeometry geometry{Plane::kK, DType::kBf16, 128, 64};
  for (const Recipe& recipe : AllRecipes()) {
    for (uint32_t form = 0; form < 0x1000; ++form) {
      if (form == kRawForm || form == CodedForm(geometry, recipe)) continue;
      EXPECT_FALSE(LayoutOf(geometry, recipe, static_cast<uint16_t>(form), 0, 4096).has_value())
          << FormatRecipe(recipe) << " " << form;
    }
  }
}

// Of every min and every range, alone and between valid ones.
TEST(FormsTest, ParamsAreFiniteAndOnlyMinimaHaveASign) {
  const auto is_finite = [](uint32_t half) { return (half & 0x7C00) != 0x7C00; };
  const auto is_valid = [](std::vector<uint32_t>& pairs) {
    TileLayout layout = {};
    layout.params.bytes = pairs.size() * kParamsBytes;
    return HasValidParams(layout, reinterpret_cast<const std::byte*>(pairs.data()));
  };
  for (const size_t count : {1, 16, 37}) {
    for (size_t at = 0; at < count; at += 18) {
      std::vector<uint32_t> pairs(count, 0x3C00BC00);
      ASSERT_TRUE(is_valid(pairs));
      for (uint32_t half = 0; half < 0x10000; ++half) {
        pairs[at] = 0x7BFF0000 | half;
        ASSERT_EQ(is_valid(pairs), is_finite(half) && half != 0x8000) << half;
        pairs[at] = half << 16;
        ASSERT_EQ(is_valid(pairs), is_finite(half) && half < 0x8000) << half;
      }
    }
  }
}

}  // namespace
}  // namespace cairn::codecs
