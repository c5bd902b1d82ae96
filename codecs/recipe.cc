// SPDX-License-Identifier: Apache-2.0
#include "codecs/recipe.h"

#include <array>
#include <cstddef>

#include "codecs/pack/exponent_tables.h"

namespace cairn::codecs {
namespace {

constexpr Recipe Kivi(uint8_t bits, bool is_clipped) {
  return Recipe{RecipeId::kKivi, bits, is_clipped, kKiviKGroupTokens, kKiviVGroupChannels};
}

constexpr Recipe Exact(bool is_fast) {
  return Recipe{.id = RecipeId::kExact, .tables = kExponentTablesVersion, .is_fast = is_fast};
}

constexpr std::array<Recipe, 9> kRecipes = {
    Recipe{},      Kivi(8, false), Kivi(4, false), Kivi(2, false), Kivi(8, true),
    Kivi(4, true), Kivi(2, true),  Exact(false),   Exact(true),
};
constexpr std::array<std::string_view, 9> kNames = {
    "raw", "kivi:8", "kivi:4", "kivi:2", "kivi:8+", "kivi:4+", "kivi:2+", "exact", "exact:fast",
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

std::string_view KnownRecipes() {
  return "raw, kivi:8, kivi:4, kivi:2, kivi:8+, kivi:4+, kivi:2+, exact, exact:fast";
}

std::span<const Recipe> AllRecipes() { return kRecipes; }

}  // namespace cairn::codecs
