// SPDX-License-Identifier: Apache-2.0
#include "codecs/format/recipe_fields.h"

#include <cstring>

#include "codecs/format/image_header.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// Returns the offset of a header field.
constexpr size_t At(size_t header_offset) { return header_offset - header::kRecipeId; }

static_assert(At(header::kSideObjects) == kRecipeFieldsBytes);
static_assert(At(header::kParamsTail) == kRecipeFieldsUsed);

Error CheckReserved(const std::byte* base, const Recipe& recipe) {
  const bool has_rate = recipe.NeedsProfile() || recipe.NeedsBank();
  const size_t rate_bytes = has_rate ? 0 : header::kVariant - header::kRecipeParams;
  const size_t tail = At(recipe.HasVariant() ? header::kParamsTail : header::kVariant);
  const bool is_zero = IsZero(base + At(header::kRecipeReserved), 1) &&
                       IsZero(base + At(header::kRecipeParams), rate_bytes) &&
                       IsZero(base + tail, kRecipeFieldsBytes - tail);
  return is_zero ? Error::kOk : Error::kBadPadding;
}

}  // namespace

void StoreRecipe(const Recipe& recipe, std::span<std::byte, kRecipeFieldsBytes> target) {
  std::byte* base = target.data();
  std::memset(base, 0, kRecipeFieldsBytes);
  Store(base + At(header::kRecipeId), recipe.id);
  Store(base + At(header::kRecipeBits), recipe.bits);
  Store(base + At(header::kRecipeFlags),
        static_cast<uint8_t>((recipe.is_clipped ? header::kFlagClipped : 0) |
                             (recipe.is_fast ? header::kFlagFast : 0) |
                             (recipe.is_local ? header::kFlagLocal : 0) |
                             (recipe.is_nearest ? header::kFlagNearest : 0)));
  Store(base + At(header::kTables), recipe.tables);
  Store(base + At(header::kKGroupTokens), recipe.k_group_tokens);
  Store(base + At(header::kVGroupChannels), recipe.v_group_channels);
  Store(base + At(header::kLevel), recipe.level);
  Store(base + At(header::kMultiplier), recipe.multiplier);
  Store(base + At(header::kVariant), recipe.variant);
  if (recipe.NeedsBank()) Store(base + At(header::kPatterns), recipe.patterns);
}

Error LoadRecipe(std::span<const std::byte, kRecipeFieldsBytes> fields, Recipe* recipe) {
  const std::byte* base = fields.data();
  *recipe = {};
  recipe->id = Load<RecipeId>(base + At(header::kRecipeId));
  recipe->bits = Load<uint8_t>(base + At(header::kRecipeBits));
  const auto flags = Load<uint8_t>(base + At(header::kRecipeFlags));
  if (flags > header::kFlagsKnown) return Error::kBadFlags;
  recipe->is_clipped = (flags & header::kFlagClipped) != 0;
  recipe->is_fast = (flags & header::kFlagFast) != 0;
  recipe->is_local = (flags & header::kFlagLocal) != 0;
  recipe->is_nearest = (flags & header::kFlagNearest) != 0;
  recipe->k_group_tokens = Load<uint16_t>(base + At(header::kKGroupTokens));
  recipe->v_group_channels = Load<uint16_t>(base + At(header::kVGroupChannels));
  // If the recipe has no tables, the field is reserved.
  recipe->tables = Load<uint8_t>(base + At(header::kTables));
  const bool has_tables = recipe->Traits().k_form == FormId::kStrips;
  if (!has_tables && recipe->tables != 0) return Error::kBadPadding;
  if (recipe->NeedsProfile()) {
    recipe->level = Load<uint8_t>(base + At(header::kLevel));
    recipe->multiplier = Load<int16_t>(base + At(header::kMultiplier));
  }
  if (recipe->HasVariant()) recipe->variant = Load<uint8_t>(base + At(header::kVariant));
  if (recipe->NeedsBank()) {
    recipe->level = Load<uint8_t>(base + At(header::kLevel));
    recipe->patterns = Load<uint16_t>(base + At(header::kPatterns));
  }
  if (!IsKnown(*recipe)) return Error::kBadHeader;
  return CheckReserved(base, *recipe);
}

}  // namespace cairn::codecs
