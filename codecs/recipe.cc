// SPDX-License-Identifier: Apache-2.0
#include "codecs/recipe.h"

#include <array>
#include <cstddef>

#include "codecs/pack/exponent_tables.h"
#include "codecs/profile.h"
#include "codecs/static_step.h"

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

// "cairn:2.3", "cairn:10.0", "cairn:2.3*243": by level and bits in tenths.
struct CairnNames {
  static constexpr uint32_t kBits = kProfileBitsMax - kProfileBitsMin + 1;
  struct Name {
    char text[16];
    uint8_t length;
  };
  Name of[kStepLevelMax + 1][kBits];
};

constexpr void Append(CairnNames::Name* name, std::string_view text) {
  for (const char c : text) name->text[name->length++] = c;
}

constexpr void AppendNumber(CairnNames::Name* name, uint32_t number) {
  if (number >= 10) AppendNumber(name, number / 10);
  name->text[name->length++] = static_cast<char>('0' + number % 10);
}

constexpr CairnNames kCairnNames = [] {
  CairnNames names{};
  uint32_t factor = 1;
  for (uint32_t level = 0; level <= kStepLevelMax; ++level, factor *= 3) {
    for (uint32_t i = 0; i < CairnNames::kBits; ++i) {
      CairnNames::Name* name = &names.of[level][i];
      const uint32_t bits = kProfileBitsMin + i;
      Append(name, "cairn:");
      AppendNumber(name, bits / 10);
      Append(name, ".");
      AppendNumber(name, bits % 10);
      if (level == 0) continue;
      Append(name, "*");
      AppendNumber(name, factor);
    }
  }
  return names;
}();

std::string_view FormatCairn(const Recipe& recipe) {
  Recipe plain{.id = RecipeId::kCairn, .bits = recipe.bits};
  plain.level = recipe.level;
  plain.multiplier = recipe.multiplier;
  const bool is_known = recipe == plain && recipe.bits >= kProfileBitsMin &&
                        recipe.bits <= kProfileBitsMax && recipe.level <= kStepLevelMax &&
                        recipe.multiplier >= -kProfileMultiplierMax &&
                        recipe.multiplier <= kProfileMultiplierMax;
  if (!is_known) return {};
  const CairnNames::Name& name = kCairnNames.of[recipe.level][recipe.bits - kProfileBitsMin];
  return {name.text, name.length};
}

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

Error ParseCairnRecipe(std::string_view name, Recipe* recipe) {
  for (uint32_t level = 0; level <= kStepLevelMax; ++level) {
    for (uint32_t bits = kProfileBitsMin; bits <= kProfileBitsMax; ++bits) {
      Recipe candidate{.id = RecipeId::kCairn, .bits = static_cast<uint8_t>(bits)};
      candidate.level = static_cast<uint8_t>(level);
      if (FormatCairn(candidate) != name) continue;
      *recipe = candidate;
      return Error::kOk;
    }
  }
  return Error::kUnknownRecipe;
}

std::string_view FormatRecipe(const Recipe& recipe) {
  if (recipe.id == RecipeId::kCairn) return FormatCairn(recipe);
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
