// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/settle.h"

#include <optional>

#include "codecs/backend/hot_multiplier.h"
#include "codecs/numbers/static_step.h"
#include "codecs/side/bank.h"
#include "codecs/side/profile.h"

namespace cairn::codecs {
namespace {

Domain DomainOf(const Profile& profile) {
  if (profile.HasBasis()) return Domain::kBasis;
  return profile.PairCount() != 0 ? Domain::kBeforeRope : Domain::kAsWritten;
}

void SetRate(const Profile& profile, const Digest& id, const Recipe& recipe, ImageSpec* spec) {
  spec->recipe = recipe;
  spec->domain = DomainOf(profile);
  NameSideObject(&id, spec);
}

}  // namespace

Error SetCairn(const Profile& profile, const Digest& id, uint32_t bits_in_tenths, uint32_t level,
               ImageSpec* spec) {
  const std::optional<int16_t> multiplier = profile.MultiplierOf(bits_in_tenths);
  if (!multiplier.has_value() || level > kStepLevelMax) return Error::kUnknownRecipe;
  SetRate(profile, id, {.id = RecipeId::kCairn, .bits = static_cast<uint8_t>(bits_in_tenths)},
          spec);
  spec->recipe.level = static_cast<uint8_t>(level);
  spec->recipe.multiplier = *multiplier;
  return Error::kOk;
}

Error SetCairnHot(const Profile& profile, const Digest& id, uint32_t bits_in_tenths,
                  ImageSpec* spec) {
  if (bits_in_tenths < kHotBitsMin || bits_in_tenths > kHotBitsMax) return Error::kUnknownRecipe;
  const std::optional<int16_t> multiplier = HotMultiplierOf(profile, bits_in_tenths);
  if (!multiplier.has_value()) return Error::kUnknownRecipe;
  SetRate(profile, id, {.id = RecipeId::kCairnHot, .bits = static_cast<uint8_t>(bits_in_tenths)},
          spec);
  spec->recipe.multiplier = *multiplier;
  return Error::kOk;
}

void SetPatternkv(const Recipe& recipe, const Bank& bank, const Digest& id, ImageSpec* spec) {
  spec->recipe = recipe;
  spec->recipe.patterns = static_cast<uint16_t>(bank.patterns());
  spec->domain = Domain::kAsWritten;
  NameSideObject(&id, spec);
}

bool IsCodableWith(const ImageSpec& spec, const Profile* profile) {
  if (!spec.recipe.NeedsProfile()) return true;
  if (profile == nullptr || !profile->Fits(spec.tile, spec.slice) ||
      spec.domain != DomainOf(*profile)) {
    return false;
  }
  return spec.recipe.id == RecipeId::kCairnHot ||
         profile->MultiplierOf(spec.recipe.bits) == spec.recipe.multiplier;
}

bool IsCodableWith(const ImageSpec& spec, const Bank* bank) {
  if (!spec.recipe.NeedsBank()) return true;
  return bank != nullptr && bank->Fits(spec.tile, spec.slice) &&
         bank->patterns() == spec.recipe.patterns;
}

bool IsEncodableWith(const ImageSpec& spec, const Profile* profile) {
  if (!spec.recipe.MayHaveProfile() || spec.side_object_count == 0) return true;
  return profile != nullptr && profile->Fits(spec.tile, spec.slice);
}

Error SetRecipe(const Recipe& recipe, const DecodeInputs& side, const Digest& id, ImageSpec* spec) {
  if (recipe.NeedsProfile()) {
    if (side.profile == nullptr) return Error::kNoProfile;
    if (recipe.id == RecipeId::kCairnHot) return SetCairnHot(*side.profile, id, recipe.bits, spec);
    return SetCairn(*side.profile, id, recipe.bits, recipe.level, spec);
  }
  if (recipe.NeedsBank()) {
    if (side.bank == nullptr) return Error::kNoBank;
    SetPatternkv(recipe, *side.bank, id, spec);
    return Error::kOk;
  }
  spec->recipe = recipe;
  spec->domain = Domain::kAsWritten;
  const bool has_profile = side.profile != nullptr && recipe.MayHaveProfile();
  NameSideObject(has_profile ? &id : nullptr, spec);
  return Error::kOk;
}

Error SetRecipe(std::string_view name, const DecodeInputs& side, const Digest& id,
                ImageSpec* spec) {
  Recipe recipe;
  Error error = ParsePolicyRecipe(name, &recipe);
  if (error == Error::kUnknownRecipe) error = ParsePlannedRecipe(name, &recipe);
  return error == Error::kOk ? SetRecipe(recipe, side, id, spec) : error;
}

bool SetRecipeOrExact(const Recipe& recipe, const DecodeInputs& side, const Digest& id,
                      ImageSpec* spec) {
  if (SetRecipe(recipe, side, id, spec) == Error::kOk) return true;
  static_cast<void>(SetRecipe("exact", {}, {}, spec));  // which needs nothing
  return false;
}

Error CheckCodableWith(const ImageSpec& spec, const DecodeInputs& side) {
  if (!IsCodableWith(spec, side.profile)) return Error::kNoProfile;
  return IsCodableWith(spec, side.bank) ? Error::kOk : Error::kNoBank;
}

}  // namespace cairn::codecs
