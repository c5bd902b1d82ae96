// SPDX-License-Identifier: Apache-2.0
// What a space's recipe asks of side objects.
#include "base/check.h"
#include "base/status.h"
#include "codecs/image/settle.h"
#include "service/limits.h"
#include "service/spaces.h"

namespace cairn {
namespace {

std::string BitsName(uint32_t tenths) { return absl::StrCat(tenths / 10, ".", tenths % 10); }

std::string RatesOf(const codecs::Profile& profile) {
  std::string rates;
  for (uint32_t bits = codecs::kProfileBitsMin; bits <= codecs::kProfileBitsMax; ++bits) {
    if (profile.MultiplierOf(bits).has_value()) {
      absl::StrAppend(&rates, rates.empty() ? "" : ", ", BitsName(bits));
    }
  }
  return rates;
}

// Of a profile; all banks do for all recipes with one.
bool HasRate(const codecs::Recipe& recipe, const codecs::Profile& profile) {
  codecs::ImageSpec spec;
  return !recipe.NeedsProfile() ||
         codecs::SetRecipe(recipe, {.profile = &profile}, {}, &spec) == codecs::Error::kOk;
}

absl::Status CheckRate(const codecs::Recipe& recipe, uint32_t group,
                       const codecs::Profile& profile) {
  if (HasRate(recipe, profile)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "recipe: the profile of group ", group, " has no rate for ",
      ToAbsl(codecs::FormatRecipe(recipe)), "; it has cairn:BITS for ", RatesOf(profile)));
}

absl::Status CheckGeometry(const codecs::GroupShape& shape, uint32_t group, const char* name,
                           const codecs::SideObjectHead& head) {
  if (head.Fits(shape.tile, codecs::WholeOf(shape)) && head.layers == shape.layers &&
      head.heads == shape.heads) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "content: the ", name, " is of ", head.layers, " layers, ", head.heads, " heads, dims ",
      head.dims[0], " and ", head.dims[1], "; group ", group, " has ", shape.layers, " layers, ",
      shape.heads, " heads, dims ", shape.tile.k_dim, " and ", shape.tile.v_dim));
}

}  // namespace

absl::StatusOr<Spaces::Installed> Spaces::Install(const SpaceEntry& space, uint32_t group,
                                                  proto::SideObjectKind kind,
                                                  std::span<const std::byte> bytes,
                                                  SideObjectOrigin origin) {
  if (group >= space.groups().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("group is ", group, ": the space has ", space.groups().size(), " groups"));
  }
  if (bytes.size() > limits::kSideObjectBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("content has ", bytes.size(), " bytes: at most ",
                                                   limits::kSideObjectBytesMax));
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<SideObject> parsed, SideObject::Parse(kind, bytes));
  const proto::SideObjectContent& content = parsed->content();
  CAIRN_RETURN_IF_ERROR(
      CheckGeometry(space.groups()[group], group, proto::Name(kind), content.head()));
  if (content.profile() != nullptr) {
    CAIRN_RETURN_IF_ERROR(CheckRate(space.recipe(), group, *content.profile()));
  }
  Installed installed = {.id = parsed->id(), .is_new = false};
  CAIRN_ASSIGN_OR_RETURN(
      installed.is_new,
      side_objects_.Install({space.id(), group, space.tenant()}, std::move(parsed), origin));
  return installed;
}

bool Spaces::WantsProfile(const SpaceEntry& space, uint32_t group) {
  const codecs::Recipe recipe = space.recipe();
  if (!recipe.NeedsProfile()) {
    return false;
  }
  const SideObjectRef current =
      side_objects_.Current(space.id(), group, proto::SideObjectKind::kProfile);
  return current.get() == nullptr || (side_objects_.OriginOf(current) == SideObjectOrigin::kMined &&
                                      !HasRate(recipe, *current.profile()));
}

SideObjectRef Spaces::Settle(const SpaceEntry& space, codecs::ImageSpec* spec) {
  const codecs::Recipe recipe = space.recipe();
  SideObjectRef current;
  if (const auto kind = proto::KindFor(recipe); kind.has_value()) {
    current = side_objects_.Current(space.id(), spec->group, *kind);
  }
  const codecs::Digest id = current.get() == nullptr ? codecs::Digest{} : current.get()->id();
  return codecs::SetRecipeOrExact(recipe, current.inputs(), id, spec) ? std::move(current)
                                                                      : SideObjectRef();
}

absl::Status Spaces::SetRecipe(uint64_t space_id, std::string_view recipe) {
  CAIRN_ASSIGN_OR_RETURN(const codecs::Recipe settled, RecipeOf(recipe));
  CAIRN_ASSIGN_OR_RETURN(const SpaceEntry* space, Find(space_id));
  for (uint32_t group = 0; group < space->groups().size(); ++group) {
    const SideObjectRef current =
        side_objects_.Current(space_id, group, proto::SideObjectKind::kProfile);
    // What was mined is mined again for another rate.
    if (current.get() != nullptr &&
        side_objects_.OriginOf(current) == SideObjectOrigin::kInstalled) {
      CAIRN_RETURN_IF_ERROR(CheckRate(settled, group, *current.inputs().profile));
    }
  }
  const MutexLock lock(mutex_);
  SpaceEntry& entry = spaces_[space_id - 1];
  const MutexLock recipe_lock(entry.mutex_);
  entry.recipe_ = settled;
  return absl::OkStatus();
}

}  // namespace cairn
