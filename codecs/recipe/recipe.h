// SPDX-License-Identifier: Apache-2.0
#pragma once
// A recipe is a codec with its parameters, under the name that users write. It is a choice at each
// stage of the pipeline
//
//   tile -> select rows -> predict -> allocate bits -> quantize -> pack
//
// The id, bits and parameters stand in the header of every image, so a reader needs no
// configuration.
//
// Thread-safety: Immutable.

#include <cstdint>
#include <span>
#include <string_view>

#include "codecs/recipe/recipe_traits.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// The values are part of the image format.
enum class RecipeId : uint8_t {
  kRaw = 1,
  kKivi = 2,
  kExact = 3,
  kCairn = 4,
  kCairnHot = 5,
  kPatternkv = 6,
  kOtt = 7,
  kArkv = 8,
  kMixKvq = 9,
  kLogQuant = 10,
  kFp8 = 11,
};

struct Recipe {
  RecipeId id = RecipeId::kRaw;
  // Of a code; 16 for raw and exact, whatever the dtype; cairn, cairn-hot: the target, in tenths.
  uint8_t bits = 16;
  // kivi:b+ : token 0 of a chain is a row, and ranges may shrink to their least squared error.
  bool is_clipped = false;
  uint16_t k_group_tokens = 0;  // tokens that share a (min, range) in a channel of K or of a latent
  uint16_t v_group_channels = 0;  // channels that share a (min, range) in a token of V

  uint8_t tables = 0;    // exact: version of the universal tables
  bool is_fast = false;  // exact:fast: strips in planes alone

  uint8_t level = 0;  // cairn: steps are 3^level times those of level 0
  // cairn: of the profile's steps; cairn-hot: of what a bit has to be worth. 256 * log2.
  int16_t multiplier = 0;

  // ott: the rows of a block are chosen without knowing the chain before it.
  bool is_local = false;

  uint8_t variant = 0;  // mixkvq: a MixedVariant; logquant: a LogVariant; arkv: 1 is arkv:paper
  // patternkv: a token takes the nearest pattern, not the one that leaves the least range.
  bool is_nearest = false;
  uint16_t patterns = 0;  // patternkv: of each head and plane, as the bank has

  // The recipe's row of the table; one that says nothing where there is no such recipe.
  [[nodiscard]] const RecipeTraits& Traits() const;

  // Tiles are source bits.
  [[nodiscard]] bool IsRaw() const { return id == RecipeId::kRaw; }
  // Decoded bits equal source bits.
  [[nodiscard]] bool IsLossless() const { return Traits().is_lossless; }
  // It codes with a profile, which SetRecipe() takes it from: ParseRecipe() knows no such recipe.
  [[nodiscard]] bool NeedsProfile() const {
    return Traits().side_object == SideObjectUse::kProfile;
  }
  // Its encoder does better with a profile, which decoding has no use for.
  [[nodiscard]] bool MayHaveProfile() const {
    return Traits().side_object == SideObjectUse::kOptionalProfile;
  }
  // It codes with a bank, which SetRecipe() takes it from: ParseRecipe() knows no such recipe.
  [[nodiscard]] bool NeedsBank() const { return Traits().side_object == SideObjectUse::kBank; }
  // It evicts by a plan that its encoder is given: ParseRecipe() knows no such recipe.
  [[nodiscard]] bool NeedsPlan() const {
    return Traits().encoded_with == EncodedWith::kTokenStates;
  }
  // It takes scores of tokens and stores them.
  [[nodiscard]] bool HasScores() const {
    return Traits().encoded_with == EncodedWith::kTokenScores;
  }
  // Without a side object there is no such image.
  [[nodiscard]] bool NeedsSideObject() const { return NeedsProfile() || NeedsBank(); }
  // Its header says which variant it is.
  [[nodiscard]] bool HasVariant() const { return Traits().has_variant; }
  // A block is coded by what the block before it in its chain left.
  [[nodiscard]] bool FollowsChain() const { return Traits().follows_chain && !is_local; }
  friend bool operator==(const Recipe&, const Recipe&) = default;
};

inline constexpr uint16_t kKiviKGroupTokens = 128;
inline constexpr uint16_t kKiviVGroupChannels = 64;

// "raw", "kivi:8", "kivi:4", "kivi:2", "kivi:8+", "kivi:4+", "kivi:2+", "exact",
// "exact:fast", "fp8", "ott:4", "ott:2", "ott:4/local", "ott:2/local", "mixkvq", "mixkvq:paper" and
// its "/7b", "/14b", "/32b", "logquant:4", "logquant:2", both also with "/log", "arkv"; anything
// else is kUnknownRecipe.
Error ParseRecipe(std::string_view name, Recipe* recipe);

// Of cairn by its name, "cairn:2.3" or "cairn:4.3*9", or of "cairn-hot:2.4", what can be known
// without the profile: bits and level, with multiplier 0. kUnknownRecipe. For SetRecipe(), which
// adds the rest.
Error ParseCairnRecipe(std::string_view name, Recipe* recipe);

// Of patternkv by its name, "patternkv:4", "patternkv:2", or either with ":l2": what can be known
// without the bank, with 0 patterns. kUnknownRecipe. For SetRecipe(), which adds the rest.
Error ParsePatternkvRecipe(std::string_view name, Recipe* recipe);

// "arkv:paper", else kUnknownRecipe. No policy names it: what is put carries no plan.
Error ParsePlannedRecipe(std::string_view name, Recipe* recipe);

// What a policy may name: a recipe of ParseRecipe(), or one that needs a profile or a bank, with
// what can be known without it. kUnknownRecipe.
Error ParsePolicyRecipe(std::string_view name, Recipe* recipe);

// The name that ParsePolicyRecipe() or ParsePlannedRecipe() takes: "cairn:2.3", or "cairn:4.3*9" at
// level 2. Empty for a recipe that neither can make and IsKnown() is false for. Static storage.
[[nodiscard]] std::string_view FormatRecipe(const Recipe& recipe);

// Every field is one that ParseRecipe() or SetRecipe() can make.
[[nodiscard]] bool IsKnown(const Recipe& recipe);

// "raw, kivi:8, …": for messages. Static storage.
[[nodiscard]] std::string_view KnownRecipes();

// Likewise of all that a policy may name: with those that need a profile or a bank.
[[nodiscard]] std::string_view PolicyRecipes();

// All that need neither profile, bank nor plan, in the order of KnownRecipes().
[[nodiscard]] std::span<const Recipe> AllRecipes();

}  // namespace cairn::codecs
