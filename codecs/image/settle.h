// SPDX-License-Identifier: Apache-2.0
#pragma once
// Resolves a recipe and its side object to the fields of an image's spec. Also checks that a side
// object fits a spec.
//
// Thread-safety: pure functions.

#include <string_view>

#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Sets recipe, domain and side object of *spec. A recipe's name is one that ParsePolicyRecipe() or
// ParsePlannedRecipe() accepts.
//   side  the profile or the bank to code with, or null
//   id    SHA-256 of the bytes of the side object
// Errors: kUnknownRecipe (there is no such recipe, or the profile has no such rate), kNoProfile or
// kNoBank (the recipe needs one).
Error SetRecipe(const Recipe& recipe, const DecodeInputs& side, const Digest& id, ImageSpec* spec);
Error SetRecipe(std::string_view name, const DecodeInputs& side, const Digest& id, ImageSpec* spec);

// SetRecipe() for a store's policy. If SetRecipe() fails, sets `exact` without a side object and
// returns false.
[[nodiscard]] bool SetRecipeOrExact(const Recipe& recipe, const DecodeInputs& side,
                                    const Digest& id, ImageSpec* spec);

// Sets recipe, domain and side object of *spec for cairn:bits with this profile.
//   id     SHA-256 of the profile's bytes
//   level  at most kStepLevelMax
// Errors: kUnknownRecipe if the profile has no such rate.
Error SetCairn(const Profile& profile, const Digest& id, uint32_t bits_in_tenths, uint32_t level,
               ImageSpec* spec);

// Sets *spec to cairn-hot:bits with this profile. A multiplier determines how many bits the codes
// use. For each number of bits, the first call with a profile searches for the multiplier, which is
// slow. Errors: kUnknownRecipe if `bits` is out of range or the profile has no such rate.
Error SetCairnHot(const Profile& profile, const Digest& id, uint32_t bits_in_tenths,
                  ImageSpec* spec);

// Sets recipe, domain and side object of *spec for patternkv with this bank.
//   recipe  from ParsePatternkvRecipe(), without a number of patterns
//   id      SHA-256 of the bank's bytes
void SetPatternkv(const Recipe& recipe, const Bank& bank, const Digest& id, ImageSpec* spec);

// Returns true if the recipe needs no profile, or if this profile fits the spec: shape, slice, rate
// and domain. The caller must also compare the id of the profile with the one in the spec; this
// function does not.
[[nodiscard]] bool IsCodableWith(const ImageSpec& spec, const Profile* profile);
// Returns true if the recipe needs no bank, or if this bank fits the spec.
[[nodiscard]] bool IsCodableWith(const ImageSpec& spec, const Bank* bank);

// Returns true if the encoder can use this profile: it fits the spec, or the recipe uses no
// profile, or the spec names none. A null profile does not fit.
[[nodiscard]] bool IsEncodableWith(const ImageSpec& spec, const Profile* profile);

// Checks that `side` has the side object that the recipe needs, and that it fits the spec. The
// caller must also compare its id with the one in the spec; this function does not. Errors:
// kNoProfile, kNoBank.
Error CheckCodableWith(const ImageSpec& spec, const DecodeInputs& side);

}  // namespace cairn::codecs
