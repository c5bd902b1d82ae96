// SPDX-License-Identifier: Apache-2.0
#include "service/spaces.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "service/limits.h"

namespace cairn {
namespace {

codecs::GroupShape ShapeOf(const proto::SpaceIdentity& identity,
                           const proto::GroupGeometry& geometry) {
  codecs::GroupShape shape;
  shape.tile.kind = static_cast<codecs::GroupKind>(geometry.kind);
  shape.layers = static_cast<uint16_t>(geometry.layers.size());
  shape.tokens_per_block = static_cast<uint16_t>(identity.tokens_per_block);
  shape.window = geometry.window_tokens;
  switch (geometry.kind) {
    case proto::GroupGeometry::Kind::kKv:
    case proto::GroupGeometry::Kind::kLatent:
      shape.tile.dtype = identity.dtype;
      shape.tile.k_dim = geometry.k_dim;
      shape.tile.v_dim = geometry.kind == proto::GroupGeometry::Kind::kKv ? geometry.v_dim : 0;
      shape.heads = static_cast<uint16_t>(
          geometry.kind == proto::GroupGeometry::Kind::kKv ? geometry.kv_heads : 1);
      break;
    case proto::GroupGeometry::Kind::kState:
    case proto::GroupGeometry::Kind::kOpaqueRows:
      shape.tile.dtype = codecs::DType::kBytes;
      shape.tile.k_dim = geometry.kind == proto::GroupGeometry::Kind::kState ? geometry.state_bytes
                                                                             : geometry.row_bytes;
      shape.heads = 1;
      break;
  }
  shape.rope.kind = static_cast<codecs::RopeKind>(geometry.rope.kind);
  shape.rope.rotary_dims = static_cast<uint16_t>(geometry.rope.rotary_dims);
  shape.rope.base = geometry.rope.base;
  return shape;
}

WantedGroup WholeGroup(uint16_t group, const codecs::GroupShape& shape) {
  WantedGroup wanted = {.group = group, .slice = codecs::WholeOf(shape)};
  if (shape.tile.kind == codecs::GroupKind::kState) {
    wanted.rule = WantedGroup::Rule::kLast;
  } else if (shape.window > 0) {
    wanted.rule = WantedGroup::Rule::kWindow;
    wanted.window_blocks = (shape.window + shape.tokens_per_block - 1) / shape.tokens_per_block + 1;
  }
  return wanted;
}

// [first, first + count) within `whole`; a count of 0 means all from first on.
absl::StatusOr<uint16_t> CountOf(std::string_view name, uint32_t first, uint32_t count,
                                 uint32_t whole) {
  if (first >= whole || count > whole - first) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(name), "_first ", first, " and ",
                                                   ToAbsl(name), "_count ", count,
                                                   ": the group has ", whole));
  }
  return static_cast<uint16_t>(count == 0 ? whole - first : count);
}

}  // namespace

codecs::Recipe SpaceEntry::recipe() const {
  const MutexLock lock(mutex_);
  return recipe_;
}

bool SpaceEntry::IsInForce(const codecs::Recipe& recipe) const {
  return codecs::FormatRecipe(recipe) == codecs::FormatRecipe(this->recipe());
}

absl::StatusOr<std::vector<WantedGroup>> SpaceEntry::Want(
    std::span<const Ask> asks, std::span<const uint32_t> groups_skipped) const {
  std::vector<WantedGroup> wanted(whole_);
  std::vector<bool> is_skipped(whole_.size(), false), is_asked(whole_.size(), false);
  for (const uint32_t group : groups_skipped) {
    if (group >= whole_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("groups_skipped ", group, ": the space has ", whole_.size(), " groups"));
    }
    is_skipped[group] = true;
  }
  for (const Ask& ask : asks) {
    if (ask.group >= whole_.size() || is_asked[ask.group] || is_skipped[ask.group]) {
      return absl::InvalidArgumentError(absl::StrCat("slices: group ", ask.group,
                                                     " is named twice, skipped, or beyond the ",
                                                     whole_.size(), " there are"));
    }
    is_asked[ask.group] = true;
    const codecs::GroupShape& shape = groups_[ask.group];
    CAIRN_ASSIGN_OR_RETURN(const uint16_t layer_count,
                           CountOf("layer", ask.layer_first, ask.layer_count, shape.layers));
    CAIRN_ASSIGN_OR_RETURN(const uint16_t head_count,
                           CountOf("head", ask.head_first, ask.head_count, shape.heads));
    wanted[ask.group].slice = {.layer_first = static_cast<uint16_t>(ask.layer_first),
                               .layer_count = layer_count,
                               .head_first = static_cast<uint16_t>(ask.head_first),
                               .head_count = head_count};
  }
  std::erase_if(wanted, [&](const WantedGroup& group) { return is_skipped[group.group]; });
  if (wanted.empty()) {
    return absl::InvalidArgumentError("groups_skipped: no group is left");
  }
  return wanted;
}

absl::Status SpaceEntry::CheckSlice(uint16_t group, const codecs::Slice& slice) const {
  if (group >= groups_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("group ", group, ": the space has ", groups_.size(), " groups"));
  }
  if (!codecs::Fits(groups_[group], slice)) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice of layers ", slice.layer_first, "+", slice.layer_count, ", heads ",
                     slice.head_first, "+", slice.head_count, ": the group has ",
                     groups_[group].layers, " layers, ", groups_[group].heads, " heads"));
  }
  return absl::OkStatus();
}

Spaces::Spaces(const codecs::Recipe& default_recipe)
    : default_recipe_(default_recipe),
      side_objects_(
          {.bytes_max = limits::kSideObjectsBytesMax, .count_max = limits::kSideObjectsMax}),
      query_squares_(limits::kQuerySquaresBytesMax) {}

absl::StatusOr<codecs::Recipe> Spaces::RecipeOf(std::string_view name) const {
  if (name.empty()) {
    return default_recipe_;
  }
  codecs::Recipe recipe;
  if (codecs::ParsePolicyRecipe(name, &recipe) != codecs::Error::kOk) {
    return absl::InvalidArgumentError(
        absl::StrCat("recipe: one of ", ToAbsl(codecs::PolicyRecipes())));
  }
  return recipe;
}

absl::StatusOr<Spaces::Opened> Spaces::Open(const proto::SpaceIdentity& identity,
                                            std::string_view recipe, std::string_view tenant) {
  if (identity.tenant != tenant) {
    return absl::PermissionDeniedError("spec.tenant is not the session's tenant");
  }
  if (identity.groups.size() > limits::kGroupsPerSpaceMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.groups: at most ", limits::kGroupsPerSpaceMax));
  }
  CAIRN_RETURN_IF_ERROR(proto::Validate(identity));
  CAIRN_ASSIGN_OR_RETURN(const codecs::Recipe settled, RecipeOf(recipe));
  std::vector<codecs::GroupShape> groups;
  std::vector<WantedGroup> whole;
  for (size_t i = 0; i < identity.groups.size(); ++i) {
    groups.push_back(ShapeOf(identity, identity.groups[i]));
    if (const codecs::Error error = codecs::Validate(groups.back()); error != codecs::Error::kOk) {
      return absl::InvalidArgumentError(
          absl::StrCat("spec.groups[", i, "]: ", ToAbsl(codecs::Name(error))));
    }
    whole.push_back(WholeGroup(static_cast<uint16_t>(i), groups.back()));
  }
  const proto::Fingerprint fingerprint = proto::FingerprintOf(identity);

  const MutexLock lock(mutex_);
  if (const auto found = by_fingerprint_.find(fingerprint); found != by_fingerprint_.end()) {
    return Opened{.space = found->second, .is_created = false};
  }
  size_t& of_tenant = counts_by_tenant_[identity.tenant];
  if (spaces_.size() >= limits::kSpacesMax || of_tenant >= limits::kSpacesPerTenantMax) {
    return absl::ResourceExhaustedError(absl::StrCat("spaces: at most ",
                                                     limits::kSpacesPerTenantMax, " a tenant, ",
                                                     limits::kSpacesMax, " in all"));
  }
  ++of_tenant;
  SpaceEntry& space = spaces_.emplace_back();
  space.id_ = spaces_.size();
  space.fingerprint_ = fingerprint;
  space.identity_ = identity;
  space.groups_ = std::move(groups);
  space.whole_ = std::move(whole);
  {
    const MutexLock recipe_lock(space.mutex_);
    space.recipe_ = settled;
  }
  by_fingerprint_.emplace(fingerprint, &space);
  return Opened{.space = &space, .is_created = true};
}

absl::StatusOr<const SpaceEntry*> Spaces::Find(uint64_t space_id, std::string_view tenant) const {
  CAIRN_ASSIGN_OR_RETURN(const SpaceEntry* space, Find(space_id));
  if (space->tenant() != tenant) {
    return absl::PermissionDeniedError("the space belongs to another tenant");
  }
  return space;
}

absl::StatusOr<const SpaceEntry*> Spaces::Find(uint64_t space_id) const {
  const MutexLock lock(mutex_);
  if (space_id == 0 || space_id > spaces_.size()) {
    return absl::NotFoundError("no such space");
  }
  return &spaces_[space_id - 1];
}

std::vector<const SpaceEntry*> Spaces::List() const {
  const MutexLock lock(mutex_);
  std::vector<const SpaceEntry*> spaces;
  for (const SpaceEntry& space : spaces_) {
    spaces.push_back(&space);
  }
  return spaces;
}

void Spaces::Report(MetricSink& sink) const {
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_spaces", "Spaces named since the start.", {},
                static_cast<double>(spaces_.size()));
  side_objects_.Report(sink);
  query_squares_.Report(sink);
}

}  // namespace cairn
