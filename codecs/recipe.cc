// SPDX-License-Identifier: Apache-2.0
#include "codecs/recipe.h"

#include <array>
#include <cstddef>
#include <iterator>

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

constexpr Recipe Fp8() { return {.id = RecipeId::kFp8, .bits = 8}; }

constexpr Recipe Ott(uint8_t bits, bool is_local) {
  return {.id = RecipeId::kOtt,
          .bits = bits,
          .k_group_tokens = kKiviKGroupTokens,
          .v_group_channels = kKiviVGroupChannels,
          .is_local = is_local};
}

struct Named {
  std::string_view name;
  Recipe recipe;
};

// All that need no profile. New ones go to the end: places are remembered.
constexpr Named kNamed[] = {
    {"raw", Recipe{}},
    {"kivi:8", Kivi(8, false)},
    {"kivi:4", Kivi(4, false)},
    {"kivi:2", Kivi(2, false)},
    {"kivi:8+", Kivi(8, true)},
    {"kivi:4+", Kivi(4, true)},
    {"kivi:2+", Kivi(2, true)},
    {"exact", Exact(false)},
    {"exact:fast", Exact(true)},
    {"fp8", Fp8()},
    {"ott:4", Ott(4, false)},
    {"ott:2", Ott(2, false)},
    {"ott:4/local", Ott(4, true)},
    {"ott:2/local", Ott(2, true)},
};

constexpr auto kRecipes = [] {
  std::array<Recipe, std::size(kNamed)> recipes{};
  for (size_t i = 0; i < recipes.size(); ++i) recipes[i] = kNamed[i].recipe;
  return recipes;
}();

constexpr size_t kListBytes = [] {
  size_t bytes = 0;
  for (const Named& named : kNamed) bytes += named.name.size() + 2;
  return bytes - 2;
}();

constexpr auto kList = [] {
  std::array<char, kListBytes> list{};
  size_t at = 0;
  for (const Named& named : kNamed) {
    if (at != 0) {
      list[at++] = ',';
      list[at++] = ' ';
    }
    for (const char c : named.name) list[at++] = c;
  }
  return list;
}();

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
  for (const Named& named : kNamed) {
    if (named.name == name) {
      *recipe = named.recipe;
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
  for (const Named& named : kNamed) {
    if (named.recipe == recipe) return named.name;
  }
  return {};
}

bool IsKnown(const Recipe& recipe) { return !FormatRecipe(recipe).empty(); }

std::string_view KnownRecipes() { return {kList.data(), kList.size()}; }

std::span<const Recipe> AllRecipes() { return kRecipes; }

}  // namespace cairn::codecs
