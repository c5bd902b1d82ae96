// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stores and loads a recipe as bytes 128 to 160 of an image's header, whose layout
// docs/internals/formats/image.md shows. Records on disk have the same bytes.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <span>

#include "codecs/recipe/recipe.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

inline constexpr size_t kRecipeFieldsBytes = 32;
// Number of bytes that known recipes use. The rest is for parameters of later recipes.
inline constexpr size_t kRecipeFieldsUsed = 13;

void StoreRecipe(const Recipe& recipe, std::span<std::byte, kRecipeFieldsBytes> target);

// Loads a recipe. Errors: kBadFlags; kBadHeader unless IsKnown(); kBadPadding if bytes that the
// recipe does not use are not zero. On an error, *recipe is unspecified.
Error LoadRecipe(std::span<const std::byte, kRecipeFieldsBytes> fields, Recipe* recipe);

}  // namespace cairn::codecs
