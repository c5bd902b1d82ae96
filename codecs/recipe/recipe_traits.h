// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of recipes: what is true of a recipe whatever its parameters, a row each. Code asks a
// recipe's row rather than its id, so that a new recipe is one row.
//
// Thread-safety: Immutable.

#include <cstdint>
#include <string_view>

#include "codecs/types/form_id.h"

namespace cairn::codecs {

enum class RecipeId : uint8_t;  // codecs/recipe/recipe.h

// The side object that images of a recipe name.
enum class SideObjectUse : uint8_t {
  kNone,
  kProfile,          // without it there is no such image
  kOptionalProfile,  // encoding does better with it; decoding has no use for it
  kBank,             // without it there is no such image
};

// What an encoder is given besides the source.
enum class EncodedWith : uint8_t {
  kNothing,
  kQueryMagnitudes,  // of the channels of K; it can do without
  kTokenScores,      // of the tokens; it can do without
  kTokenStates,      // a plan of which tokens are kept: no policy can name such a recipe
};

// The recipes that an image can be recoded to without its source.
enum class Demotion : uint8_t {
  kNone,            // its own alone
  kAnyRecipe,       // all that code source bits, which its tiles decode to
  kFewerBits,       // those of fewer bits: codes are narrowed, raw tiles coded
  kFewerBitsCoded,  // likewise, but raw tiles stay raw
  kLongerSteps,     // those of a higher level, given the profile
};

struct RecipeTraits {
  RecipeId id{};
  uint8_t variant_min = 0;  // of two rows of an id, a recipe of this variant or a higher one has it
  std::string_view family;  // what its names begin with
  // The forms of coded tiles. Latents have K's.
  FormId k_form = FormId::kRaw;
  FormId v_form = FormId::kRaw;
  SideObjectUse side_object = SideObjectUse::kNone;
  EncodedWith encoded_with = EncodedWith::kNothing;
  Demotion demotes_to = Demotion::kNone;
  bool is_lossless = false;      // decoded bits equal source bits
  bool has_variant = false;      // its header says which variant it is
  bool follows_chain = false;    // its rows depend on the blocks before, but for the local ones
  bool has_ageing_rows = false;  // its rows are fewer, the longer the chain
  // Of one that is named by its bits, "family:2.3": the least and the most, in tenths, and the
  // highest level. 0: there are no such names.
  uint8_t bits_min = 0;
  uint8_t bits_max = 0;
  uint8_t level_max = 0;
};

}  // namespace cairn::codecs
