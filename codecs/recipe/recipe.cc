// SPDX-License-Identifier: Apache-2.0
#include "codecs/recipe/recipe.h"

#include <array>
#include <cstddef>
#include <iterator>

#include "codecs/numbers/mixed.h"
#include "codecs/numbers/static_step.h"
#include "codecs/pack/exponent_tables.h"
#include "codecs/side/bank.h"
#include "codecs/side/hot_rates.h"
#include "codecs/side/profile.h"

namespace cairn::codecs {
namespace {

// If an id has two entries, the second one is for the higher variants.
constexpr RecipeTraits kTraits[] = {
    {.id = RecipeId::kRaw,
     .family = "raw",
     .demotes_to = Demotion::kAnyRecipe,
     .is_lossless = true},
    {.id = RecipeId::kKivi,
     .family = "kivi",
     .k_form = FormId::kAffine,
     .v_form = FormId::kAffine,
     .demotes_to = Demotion::kFewerBits},
    {.id = RecipeId::kExact,
     .family = "exact",
     .k_form = FormId::kStrips,
     .v_form = FormId::kStrips,
     .demotes_to = Demotion::kAnyRecipe,
     .is_lossless = true},
    {.id = RecipeId::kCairn,
     .family = "cairn",
     .k_form = FormId::kSteps,
     .v_form = FormId::kSteps,
     .side_object = SideObjectUse::kProfile,
     .demotes_to = Demotion::kLongerSteps,
     .bits_min = kProfileBitsMin,
     .bits_max = kProfileBitsMax,
     .level_max = kStepLevelMax},
    {.id = RecipeId::kCairnHot,
     .family = "cairn-hot",
     .k_form = FormId::kHot,
     .v_form = FormId::kHot,
     .side_object = SideObjectUse::kProfile,
     .bits_min = kHotBitsMin,
     .bits_max = kHotBitsMax},
    {.id = RecipeId::kPatternkv,
     .family = "patternkv",
     .k_form = FormId::kPatterned,
     .v_form = FormId::kPatterned,
     .side_object = SideObjectUse::kBank,
     .demotes_to = Demotion::kFewerBitsCoded},
    {.id = RecipeId::kOtt,
     .family = "ott",
     .k_form = FormId::kAffine,
     .v_form = FormId::kAffine,
     .demotes_to = Demotion::kFewerBitsCoded,
     .follows_chain = true},
    {.id = RecipeId::kArkv,
     .family = "arkv",
     .k_form = FormId::kAffine,
     .v_form = FormId::kAffine,
     .encoded_with = EncodedWith::kTokenScores,
     .has_variant = true},
    {.id = RecipeId::kArkv,
     .variant_min = 1,
     .family = "arkv:paper",
     .k_form = FormId::kKept,
     .v_form = FormId::kKept,
     .encoded_with = EncodedWith::kTokenStates,
     .has_variant = true},
    {.id = RecipeId::kMixKvq,
     .family = "mixkvq",
     .k_form = FormId::kMixed,
     .v_form = FormId::kAffine,
     .side_object = SideObjectUse::kOptionalProfile,
     .encoded_with = EncodedWith::kQueryMagnitudes,
     .has_variant = true},
    {.id = RecipeId::kLogQuant,
     .family = "logquant",
     .k_form = FormId::kAffine,
     .v_form = FormId::kAffine,
     .demotes_to = Demotion::kFewerBitsCoded,
     .has_variant = true,
     .has_ageing_rows = true},
    {.id = RecipeId::kFp8, .family = "fp8", .k_form = FormId::kFp8, .v_form = FormId::kFp8},
};
constexpr RecipeTraits kNoTraits;

constexpr Recipe Exact(bool is_fast) {
  return Recipe{.id = RecipeId::kExact, .tables = kExponentTablesVersion, .is_fast = is_fast};
}

constexpr Recipe Fp8() { return {.id = RecipeId::kFp8, .bits = 8}; }

// Recipes with codes in kivi's groups, and the one field in which recipes of the same id and width
// differ.
template <typename Value>
constexpr Recipe Grouped(RecipeId id, uint8_t bits, Value Recipe::*field, Value value) {
  Recipe recipe = {.id = id,
                   .bits = bits,
                   .k_group_tokens = kKiviKGroupTokens,
                   .v_group_channels = kKiviVGroupChannels};
  recipe.*field = value;
  return recipe;
}

constexpr Recipe Kivi(uint8_t bits, bool is_clipped) {
  return Grouped(RecipeId::kKivi, bits, &Recipe::is_clipped, is_clipped);
}

constexpr Recipe Ott(uint8_t bits, bool is_local) {
  return Grouped(RecipeId::kOtt, bits, &Recipe::is_local, is_local);
}

constexpr Recipe MixKvq(MixedVariant variant) {
  const bool is_paper = variant != MixedVariant::kBudget;
  return {.id = RecipeId::kMixKvq,
          .bits = 2,
          .k_group_tokens = is_paper ? kMixedPaperGroup : kKiviKGroupTokens,
          .v_group_channels = is_paper ? kMixedPaperGroup : kKiviVGroupChannels,
          .variant = static_cast<uint8_t>(variant)};
}

constexpr Recipe Patternkv(uint8_t bits, bool is_nearest) {
  return Grouped(RecipeId::kPatternkv, bits, &Recipe::is_nearest, is_nearest);
}

// The variants of codecs/stages/select/log_rows.h.
constexpr Recipe LogQuant(uint8_t bits, uint8_t variant) {
  return Grouped(RecipeId::kLogQuant, bits, &Recipe::variant, variant);
}

constexpr Recipe Arkv() { return Grouped(RecipeId::kArkv, 4, &Recipe::variant, uint8_t{0}); }

constexpr Recipe ArkvPaper() { return {.id = RecipeId::kArkv, .bits = 8, .variant = 1}; }

struct Named {
  std::string_view name;
  Recipe recipe;
};

// All recipes that need no profile, bank or plan. Add new ones at the end: their indices are
// stored.
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
    {"mixkvq", MixKvq(MixedVariant::kBudget)},
    {"mixkvq:paper", MixKvq(MixedVariant::kLlama8b)},
    {"mixkvq:paper/7b", MixKvq(MixedVariant::kQwen7b)},
    {"mixkvq:paper/14b", MixKvq(MixedVariant::kQwen14b)},
    {"mixkvq:paper/32b", MixKvq(MixedVariant::kQwen32b)},
    {"logquant:4", LogQuant(4, 0)},
    {"logquant:2", LogQuant(2, 0)},
    {"logquant:4/log", LogQuant(4, 1)},
    {"logquant:2/log", LogQuant(2, 1)},
    {"arkv", Arkv()},
};

// Recipes that need a bank, without the number of patterns.
constexpr Named kWithBank[] = {
    {"patternkv:4", Patternkv(4, false)},
    {"patternkv:2", Patternkv(2, false)},
    {"patternkv:4:l2", Patternkv(4, true)},
    {"patternkv:2:l2", Patternkv(2, true)},
};

constexpr Named kWithPlan[] = {{"arkv:paper", ArkvPaper()}};

constexpr auto kRecipes = [] {
  std::array<Recipe, std::size(kNamed)> recipes{};
  for (size_t i = 0; i < recipes.size(); ++i) recipes[i] = kNamed[i].recipe;
  return recipes;
}();

constexpr std::string_view kRates = "cairn:BITS or cairn-hot:BITS, BITS as 2.3";

// Builds "a, b, …" from kNamed, then from kWithBank; the first kListBytes are of kNamed.
constexpr size_t BytesOf(std::span<const Named> list) {
  size_t bytes = 0;
  for (const Named& named : list) bytes += named.name.size() + 2;
  return bytes;
}
constexpr size_t kListBytes = BytesOf(kNamed) - 2;

constexpr auto kList = [] {
  std::array<char, BytesOf(kNamed) + BytesOf(kWithBank) + kRates.size()> list{};
  size_t at = 0;
  const auto append = [&](std::string_view text) {
    for (const char c : text) list[at++] = c;
  };
  for (const std::span<const Named> names :
       {std::span<const Named>(kNamed), std::span<const Named>(kWithBank)}) {
    for (const Named& named : names) {
      append(named.name);
      append(", ");
    }
  }
  append(kRates);
  return list;
}();

struct Name {
  char text[16];
  uint8_t length;
};

constexpr void Append(Name* name, std::string_view text) {
  for (const char c : text) name->text[name->length++] = c;
}

constexpr void AppendNumber(Name* name, uint32_t number) {
  if (number >= 10) AppendNumber(name, number / 10);
  name->text[name->length++] = static_cast<char>('0' + number % 10);
}

// Returns the name of a recipe that is named by its bits, in tenths, and its level: "cairn:2.3",
// "cairn:10.0", "cairn:2.3*243", "cairn-hot:2.4".
constexpr Name NameOf(std::string_view family, uint32_t bits, uint32_t level) {
  Name name{};
  Append(&name, family);
  Append(&name, ":");
  AppendNumber(&name, bits / 10);
  Append(&name, ".");
  AppendNumber(&name, bits % 10);
  if (level == 0) return name;
  uint32_t factor = 1;
  while (level-- > 0) factor *= 3;
  Append(&name, "*");
  AppendNumber(&name, factor);
  return name;
}

// Returns the numbers of bits and of names of the recipes of an entry.
constexpr uint32_t BitsCount(const RecipeTraits& traits) {
  return traits.bits_max == 0 ? 0 : uint32_t{traits.bits_max} - traits.bits_min + 1;
}
constexpr uint32_t NameCount(const RecipeTraits& traits) {
  return (traits.level_max + 1U) * BitsCount(traits);
}
constexpr uint32_t kRateNameCount = [] {
  uint32_t count = 0;
  for (const RecipeTraits& traits : kTraits) count += NameCount(traits);
  return count;
}();

// Names by entry, level and bits.
struct RateName {
  RecipeId id;
  uint8_t bits, level;
  Name name;

  [[nodiscard]] constexpr std::string_view text() const { return {name.text, name.length}; }
};
constexpr auto kRateNames = [] {
  std::array<RateName, kRateNameCount> names{};
  uint32_t count = 0;
  for (const RecipeTraits& traits : kTraits) {
    for (uint32_t i = 0; i < NameCount(traits); ++i) {
      const uint32_t level = i / BitsCount(traits);
      const uint32_t bits = traits.bits_min + i % BitsCount(traits);
      names[count++] = {traits.id, static_cast<uint8_t>(bits), static_cast<uint8_t>(level),
                        NameOf(traits.family, bits, level)};
    }
  }
  return names;
}();

// Returns the name of a recipe with a profile.
std::string_view FormatRate(const Recipe& recipe) {
  Recipe plain{.id = recipe.id, .bits = recipe.bits};
  plain.level = recipe.level;
  plain.multiplier = recipe.multiplier;
  const RecipeTraits& own = recipe.Traits();
  const bool is_known = recipe == plain && recipe.level <= own.level_max &&
                        recipe.bits >= own.bits_min && recipe.bits <= own.bits_max &&
                        recipe.multiplier >= -kProfileMultiplierMax &&
                        recipe.multiplier <= kProfileMultiplierMax;
  if (!is_known) return {};
  uint32_t index = recipe.level * BitsCount(own) + recipe.bits - own.bits_min;
  for (const RecipeTraits* before = kTraits; before != &own; ++before) index += NameCount(*before);
  return kRateNames[index].text();
}

Error FindIn(std::span<const Named> list, std::string_view name, Recipe* recipe) {
  for (const Named& named : list) {
    if (named.name == name) {
      *recipe = named.recipe;
      return Error::kOk;
    }
  }
  return Error::kUnknownRecipe;
}

std::string_view NameIn(std::span<const Named> list, const Recipe& recipe) {
  for (const Named& named : list) {
    if (named.recipe == recipe) return named.name;
  }
  return {};
}

std::string_view FormatPatternkv(Recipe recipe) {
  if (recipe.patterns > kBankPatternsMax) return {};
  recipe.patterns = 0;  // the bank has them; names do not
  return NameIn(kWithBank, recipe);
}

}  // namespace

const RecipeTraits& Recipe::Traits() const {
  const RecipeTraits* found = &kNoTraits;
  for (const RecipeTraits& traits : kTraits) {
    if (traits.id == id && traits.variant_min <= variant) found = &traits;
  }
  return *found;
}

Error ParseRecipe(std::string_view name, Recipe* recipe) { return FindIn(kNamed, name, recipe); }

Error ParseCairnRecipe(std::string_view name, Recipe* recipe) {
  for (const RateName& known : kRateNames) {
    if (known.text() != name) continue;
    *recipe = {.id = known.id, .bits = known.bits};
    recipe->level = known.level;
    return Error::kOk;
  }
  return Error::kUnknownRecipe;
}

Error ParsePatternkvRecipe(std::string_view name, Recipe* recipe) {
  return FindIn(kWithBank, name, recipe);
}

Error ParsePlannedRecipe(std::string_view name, Recipe* recipe) {
  return FindIn(kWithPlan, name, recipe);
}

Error ParsePolicyRecipe(std::string_view name, Recipe* recipe) {
  for (const auto parse : {ParseRecipe, ParsePatternkvRecipe, ParseCairnRecipe}) {
    if (parse(name, recipe) == Error::kOk) return Error::kOk;
  }
  return Error::kUnknownRecipe;
}

std::string_view FormatRecipe(const Recipe& recipe) {
  if (recipe.NeedsProfile()) return FormatRate(recipe);
  if (recipe.NeedsBank()) return FormatPatternkv(recipe);
  return NameIn(recipe.NeedsPlan() ? std::span<const Named>(kWithPlan) : kNamed, recipe);
}

bool IsKnown(const Recipe& recipe) {
  return !FormatRecipe(recipe).empty() && (!recipe.NeedsBank() || recipe.patterns != 0);
}

std::string_view KnownRecipes() { return {kList.data(), kListBytes}; }

std::string_view PolicyRecipes() { return {kList.data(), kList.size()}; }

std::span<const Recipe> AllRecipes() { return kRecipes; }

}  // namespace cairn::codecs
