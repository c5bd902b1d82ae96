// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a recipe's name, and the side object that it codes with, to what an image's header says.
//
// Thread-safety: pure functions.

#include <string_view>

#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Makes *spec one of the recipe, or of that name: one that ParsePolicyRecipe() or
// ParsePlannedRecipe() makes.
//   side  the profile or the bank that there is, if any
//   id    SHA-256 of its bytes
// kUnknownRecipe where the name or the profile has no such one; kNoProfile, kNoBank where the
// recipe needs one.
Error SetRecipe(const Recipe& recipe, const DecodeInputs& side, const Digest& id, ImageSpec* spec);
Error SetRecipe(std::string_view name, const DecodeInputs& side, const Digest& id, ImageSpec* spec);

// The same, but `exact` where that fails: what a store makes of its policy. False for exact so
// chosen, which names no side object.
[[nodiscard]] bool SetRecipeOrExact(const Recipe& recipe, const DecodeInputs& side,
                                    const Digest& id, ImageSpec* spec);

// kNoProfile, kNoBank: the recipe needs one, and this is none for the spec. Whether it is the one
// that is named is the caller's to know.
Error CheckCodableWith(const ImageSpec& spec, const DecodeInputs& side);

}  // namespace cairn::codecs
