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

// Makes *spec one of cairn:bits with this profile: sets recipe, domain and side object.
//   id     SHA-256 of the profile's bytes
//   level  at most kStepLevelMax
// kUnknownRecipe where the profile has no such rate.
Error SetCairn(const Profile& profile, const Digest& id, uint32_t bits_in_tenths, uint32_t level,
               ImageSpec* spec);

// Makes *spec one of cairn-hot:bits with this profile; the first time for these bits all its
// channels are looked at.
// kUnknownRecipe where bits are out of range or the profile has no such rate.
Error SetCairnHot(const Profile& profile, const Digest& id, uint32_t bits_in_tenths,
                  ImageSpec* spec);

// Makes *spec one of patternkv with this bank: sets recipe, domain and side object.
//   recipe  of ParsePatternkvRecipe(), without its patterns
//   id      SHA-256 of the bank's bytes
void SetPatternkv(const Recipe& recipe, const Bank& bank, const Digest& id, ImageSpec* spec);

// The recipe needs no profile, or this is one for the spec: its group has such tiles, and rate and
// domain are its own. Whether it is the one that is named is the caller's to know.
[[nodiscard]] bool IsCodableWith(const ImageSpec& spec, const Profile* profile);
// The same of banks.
[[nodiscard]] bool IsCodableWith(const ImageSpec& spec, const Bank* bank);

// Where the recipe has a use for a profile and the spec names one, this is one for its slice.
[[nodiscard]] bool IsEncodableWith(const ImageSpec& spec, const Profile* profile);

// kNoProfile, kNoBank: the recipe needs one, and this is none for the spec. Whether it is the one
// that is named is the caller's to know.
Error CheckCodableWith(const ImageSpec& spec, const DecodeInputs& side);

}  // namespace cairn::codecs
