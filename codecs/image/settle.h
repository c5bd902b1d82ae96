// SPDX-License-Identifier: Apache-2.0
#pragma once
// Resolves a recipe into the fields of an image's spec, given the side object that it codes with,
// and checks that a side object fits a spec.
//
// Thread-safety: pure functions.

#include <string_view>

#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Sets recipe, domain and side object of *spec. A name is one that ParsePolicyRecipe() or
// ParsePlannedRecipe() takes.
//   side  the profile or the bank to code with; null where there is none
//   id    SHA-256 of its bytes
// kUnknownRecipe: there is no such recipe, or the profile has no such rate.
// kNoProfile, kNoBank: the recipe needs one.
Error SetRecipe(const Recipe& recipe, const DecodeInputs& side, const Digest& id, ImageSpec* spec);
Error SetRecipe(std::string_view name, const DecodeInputs& side, const Digest& id, ImageSpec* spec);

// The same, but sets `exact`, without a side object, where that fails, and then returns false. A
// store applies its policy so.
[[nodiscard]] bool SetRecipeOrExact(const Recipe& recipe, const DecodeInputs& side,
                                    const Digest& id, ImageSpec* spec);

// Sets *spec to cairn:bits with this profile: recipe, domain and side object.
//   id     SHA-256 of the profile's bytes
//   level  at most kStepLevelMax
// kUnknownRecipe where the profile has no such rate.
Error SetCairn(const Profile& profile, const Digest& id, uint32_t bits_in_tenths, uint32_t level,
               ImageSpec* spec);

// Sets *spec to cairn-hot:bits with this profile. Searches the multiplier the first time that a
// profile is asked for these bits.
// kUnknownRecipe where bits are out of range or the profile has no such rate.
Error SetCairnHot(const Profile& profile, const Digest& id, uint32_t bits_in_tenths,
                  ImageSpec* spec);

// Sets *spec to patternkv with this bank: recipe, domain and side object.
//   recipe  of ParsePatternkvRecipe(), without its patterns
//   id      SHA-256 of the bank's bytes
void SetPatternkv(const Recipe& recipe, const Bank& bank, const Digest& id, ImageSpec* spec);

// Returns true if the recipe needs no profile, or this one fits the spec: shape, slice, rate and
// domain. Does not compare its hash with the one that the spec names; the caller does.
[[nodiscard]] bool IsCodableWith(const ImageSpec& spec, const Profile* profile);
// The same for banks.
[[nodiscard]] bool IsCodableWith(const ImageSpec& spec, const Bank* bank);

// Returns false if the spec names a profile that the recipe may use and this one does not fit.
[[nodiscard]] bool IsEncodableWith(const ImageSpec& spec, const Profile* profile);

// kNoProfile, kNoBank: the recipe needs one, and this is none for the spec. Whether it is the one
// that is named is the caller's to know.
Error CheckCodableWith(const ImageSpec& spec, const DecodeInputs& side);

}  // namespace cairn::codecs
