// SPDX-License-Identifier: Apache-2.0
#pragma once
// An entry of the table of recipes. It has the properties of a recipe that do not depend on its
// parameters. Code uses these properties instead of the recipe's id, so adding a recipe means
// adding one entry.
//
// Thread-safety: Immutable.

#include <cstdint>
#include <string_view>

#include "codecs/types/form_id.h"

namespace cairn::codecs {

enum class RecipeId : uint8_t;  // codecs/recipe/recipe.h

// Whether images of a recipe name a side object, and which kind.
enum class SideObjectUse : uint8_t {
  kNone,
  kProfile,          // required
  kOptionalProfile,  // improves encoding; decoding does not use it
  kBank,             // required
};

// The input of the recipe's encoder in addition to the source.
enum class EncodedWith : uint8_t {
  kNothing,
  kQueryMagnitudes,  // for each channel of K; optional
  kTokenScores,      // for each token; optional
  kTokenStates,      // a plan of the tokens to keep; a policy cannot name such a recipe
};

// Which other recipes an image can be recoded to without its source.
enum class Demotion : uint8_t {
  kNone,            // only its own recipe
  kAnyRecipe,       // every recipe that encodes source bits, because its tiles decode to source
                    // bits
  kFewerBits,       // recipes of fewer bits: codes are narrowed, raw tiles are encoded
  kFewerBitsCoded,  // the same, but raw tiles stay raw
  kLongerSteps,     // recipes of a higher level; needs the profile
};

struct RecipeTraits {
  RecipeId id{};
  uint8_t variant_min = 0;  // if an id has two entries: the lowest variant of this entry
  std::string_view family;  // the beginning of the recipes' names
  // The form of coded tiles of K and latents, and that of V.
  FormId k_form = FormId::kRaw;
  FormId v_form = FormId::kRaw;
  SideObjectUse side_object = SideObjectUse::kNone;
  EncodedWith encoded_with = EncodedWith::kNothing;
  Demotion demotes_to = Demotion::kNone;
  bool is_lossless = false;      // decoded bits equal source bits
  bool has_variant = false;      // the image header has the variant
  bool follows_chain = false;    // its rows depend on earlier blocks, except in a local recipe
  bool has_ageing_rows = false;  // the longer the chain, the fewer rows a block has
  // For a family of recipes whose names contain bits, such as "family:2.3": the lowest and the
  // highest bits, in tenths, and the highest level. 0 means that the family has no such names.
  uint8_t bits_min = 0;
  uint8_t bits_max = 0;
  uint8_t level_max = 0;
};

}  // namespace cairn::codecs
