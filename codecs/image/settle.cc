// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/settle.h"

#include "codecs/forms/patterned.h"
#include "codecs/forms/steps.h"

namespace cairn::codecs {

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
