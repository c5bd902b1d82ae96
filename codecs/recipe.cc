// SPDX-License-Identifier: Apache-2.0
#include "codecs/recipe.h"

#include <array>
#include <cstddef>

namespace cairn::codecs {
namespace {

constexpr Recipe Kivi(uint8_t bits, bool is_clipped) {
  return Recipe{RecipeId::kKivi, bits, is_clipped, kKiviKGroupTokens, kKiviVGroupChannels};
}

constexpr std::array<Recipe, 7> kRecipes = {
    Recipe{},      Kivi(8, false), Kivi(4, false), Kivi(2, false),
    Kivi(8, true), Kivi(4, true),  Kivi(2, true),
};
constexpr std::array<std::string_view, 7> kNames = {
    "raw", "kivi:8", "kivi:4", "kivi:2", "kivi:8+", "kivi:4+", "kivi:2+",
};

}  // namespace

Error ParseRecipe(std::string_view name, Recipe* recipe) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) {
      *recipe = kRecipes[i];
      return Error::kOk;
    }
  }
  return Error::kUnknownRecipe;
}

std::string_view FormatRecipe(const Recipe& recipe) {
  for (size_t i = 0; i < kRecipes.size(); ++i) {
    if (kRecipes[i] == recipe) return kNames[i];
  }
  return {};
}

bool IsKnown(const Recipe& recipe) { return !FormatRecipe(recipe).empty(); }

std::string_view KnownRecipes() { return "raw, kivi:8, kivi:4, kivi:2, kivi:8+, kivi:4+, kivi:2+"; }

std::span<const Recipe> AllRecipes() { return kRecipes; }

}  // namespace cairn::codecs
