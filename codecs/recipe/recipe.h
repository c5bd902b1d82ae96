// SPDX-License-Identifier: Apache-2.0
#pragma once
// A recipe is a codec with its parameters. Users write its name. A recipe makes one choice for each
// stage of the pipeline
//
//   tile -> select rows -> predict -> allocate bits -> quantize -> pack
//
// The header of every image stores id, bits and parameters of its recipe, so a reader needs no
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
  // Bits of a code. It is 16 for raw and exact, whatever the dtype. For cairn and cairn-hot it is
  // the target in tenths of a bit.
  uint8_t bits = 16;
  // kivi:b+ sets it: token 0 of a chain is stored as a row, and a group may use a smaller range
  // that has the least squared error.
  bool is_clipped = false;
  uint16_t k_group_tokens = 0;  // tokens that share a (min, range) in a channel of K or of a latent
  uint16_t v_group_channels = 0;  // channels that share a (min, range) in a token of V

  uint8_t tables = 0;    // exact: version of the universal tables
  bool is_fast = false;  // exact:fast: strips in mode planes only

  uint8_t level = 0;  // cairn: steps are 3^level times those of level 0
  // 256 * log2 of a multiplier. cairn multiplies the profile's steps by it. For cairn-hot, it is
  // the minimum worth of a bit.
  int16_t multiplier = 0;

  // ott/local sets it: the rows of a block are chosen without the earlier blocks of the chain.
  bool is_local = false;

  uint8_t variant = 0;  // mixkvq: a MixedVariant; logquant: a LogVariant; arkv: 1 is arkv:paper
  // patternkv sets it with ":l2": a token takes the nearest pattern, not the one that leaves the
  // smallest range.
  bool is_nearest = false;
  uint16_t patterns = 0;  // patternkv: number of patterns of each head and plane, as in the bank

  // Returns the recipe's entry in the table; an empty entry if the id is unknown.
  [[nodiscard]] const RecipeTraits& Traits() const;

  // Returns true if tiles store source bits.
  [[nodiscard]] bool IsRaw() const { return id == RecipeId::kRaw; }
  // Returns true if decoded bits equal source bits.
  [[nodiscard]] bool IsLossless() const { return Traits().is_lossless; }
  // Returns true if the recipe codes with a profile. SetRecipe() makes such a recipe; ParseRecipe()
  // does not.
  [[nodiscard]] bool NeedsProfile() const {
    return Traits().side_object == SideObjectUse::kProfile;
  }
  // Returns true if the encoder uses a profile when there is one. Decoding does not need it.
  [[nodiscard]] bool MayHaveProfile() const {
    return Traits().side_object == SideObjectUse::kOptionalProfile;
  }
  // Returns true if the recipe codes with a bank. SetRecipe() makes such a recipe; ParseRecipe()
  // does not.
  [[nodiscard]] bool NeedsBank() const { return Traits().side_object == SideObjectUse::kBank; }
  // Returns true if the encoder needs a plan that says which tokens to keep. ParseRecipe() does not
  // make such a recipe.
  [[nodiscard]] bool NeedsPlan() const {
    return Traits().encoded_with == EncodedWith::kTokenStates;
  }
  // Returns true if its images store scores of tokens.
  [[nodiscard]] bool HasScores() const {
    return Traits().encoded_with == EncodedWith::kTokenScores;
  }
  // Returns true if each of its images names a side object.
  [[nodiscard]] bool NeedsSideObject() const { return NeedsProfile() || NeedsBank(); }
  // Returns true if the header of its images stores a variant.
  [[nodiscard]] bool HasVariant() const { return Traits().has_variant; }
  // Returns true if coding a block needs state from the previous block of its chain.
  [[nodiscard]] bool FollowsChain() const { return Traits().follows_chain && !is_local; }
  friend bool operator==(const Recipe&, const Recipe&) = default;
};

inline constexpr uint16_t kKiviKGroupTokens = 128;
inline constexpr uint16_t kKiviVGroupChannels = 64;

// Parses a name of KnownRecipes(): "raw", "kivi:2+", "exact:fast". Errors: kUnknownRecipe.
Error ParseRecipe(std::string_view name, Recipe* recipe);

// Parses "cairn:2.3", "cairn:4.3*9" or "cairn-hot:2.4": sets bits and level. The multiplier is 0
// until SetRecipe() sets it from the profile. Errors: kUnknownRecipe.
Error ParseCairnRecipe(std::string_view name, Recipe* recipe);

// Parses "patternkv:4", "patternkv:2", or either with ":l2". The number of patterns is 0 until
// SetRecipe() sets it from the bank. Errors: kUnknownRecipe.
Error ParsePatternkvRecipe(std::string_view name, Recipe* recipe);

// Parses "arkv:paper". No policy can name it, because a put carries no plan. Errors:
// kUnknownRecipe.
Error ParsePlannedRecipe(std::string_view name, Recipe* recipe);

// Parses a name that a policy may have: one that ParseRecipe(), ParseCairnRecipe() or
// ParsePatternkvRecipe() accepts. Errors: kUnknownRecipe.
Error ParsePolicyRecipe(std::string_view name, Recipe* recipe);

// Returns a name that ParsePolicyRecipe() or ParsePlannedRecipe() accepts, such as "cairn:2.3", or
// "cairn:4.3*9" at level 2. Empty if neither function can make this recipe. Static storage.
[[nodiscard]] std::string_view FormatRecipe(const Recipe& recipe);

// Returns true if ParseRecipe() or SetRecipe() can make this recipe.
[[nodiscard]] bool IsKnown(const Recipe& recipe);

// Returns the names that ParseRecipe() accepts, for messages: "raw, kivi:8, …". Static storage.
[[nodiscard]] std::string_view KnownRecipes();

// Returns the names that ParsePolicyRecipe() accepts, for messages. Static storage.
[[nodiscard]] std::string_view PolicyRecipes();

// Returns the recipes of KnownRecipes(), in the same order.
[[nodiscard]] std::span<const Recipe> AllRecipes();

}  // namespace cairn::codecs
