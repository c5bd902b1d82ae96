// SPDX-License-Identifier: Apache-2.0
#include "service/spaces.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "codecs/transform/demote.h"
#include "service/limits.h"

namespace cairn {
namespace {

absl::Status NoSpace() { return absl::NotFoundError("no such space"); }

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

// Returns the count of [first, first + count) within `whole`. A count of 0 means all from first on.
absl::StatusOr<uint16_t> CountOf(std::string_view name, uint32_t first, uint32_t count,
                                 uint32_t whole) {
  if (first >= whole || count > whole - first) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(name), "_first ", first, " and ",
                                                   ToAbsl(name), "_count ", count,
                                                   ": the group has ", whole));
  }
  return static_cast<uint16_t>(count == 0 ? whole - first : count);
}

absl::StatusOr<codecs::Recipe> ParseRecipe(std::string_view field, std::string_view name) {
  codecs::Recipe recipe;
  if (codecs::ParsePolicyRecipe(name, &recipe) != codecs::Error::kOk) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(field), ": one of ", ToAbsl(codecs::PolicyRecipes())));
  }
  return recipe;
}

}  // namespace

SpaceEntry::SpaceEntry(uint64_t id, const proto::Fingerprint& fingerprint,
                       const proto::SpaceIdentity& identity, std::vector<codecs::GroupShape> groups,
                       std::vector<WantedGroup> whole, const SpacePolicy& policy,
                       SideObjects& side_objects, QuerySquares& query_squares)
    : id_(id),
      fingerprint_(fingerprint),
      identity_(identity),
      groups_(std::move(groups)),
      whole_(std::move(whole)),
      coding_(id, identity_.tenant, groups_, policy, side_objects, query_squares) {}

SpaceEntry::Snapshot SpaceEntry::Describe() const {
  Snapshot snapshot;
  snapshot.record.fingerprint = fingerprint_;
  snapshot.record.identity = identity_;
  snapshot.side_objects = coding_.Describe(&snapshot.record);
  return snapshot;
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

// --- References ----------------------------------------------------------------------------------

SpaceRef SpaceRef::Share() const {
  CAIRN_CHECK(!is_empty());
  handle_.owner().Ref(handle_.value());
  return {handle_.owner(), handle_.value()};
}

void SpaceRef::Release(Spaces& owner, SpaceEntry* entry) { owner.Unref(entry); }

void Spaces::Ref(SpaceEntry* entry) {
  const MutexLock lock(mutex_);
  ++entry->references_;
}

void Spaces::Unref(SpaceEntry* entry) {
  const absl::Time now = parts_.clock.Now();
  const MutexLock lock(mutex_);
  CAIRN_CHECK(entry->references_ > 0);
  if (--entry->references_ == 0) {
    entry->idle_since_ = now;
  }
}

SpaceRef Spaces::RefLocked(SpaceEntry* entry) {
  ++entry->references_;
  return {*this, entry};
}

// --- Opening and finding -------------------------------------------------------------------------

Spaces::Spaces(const codecs::Recipe& default_recipe, Parts parts)
    : default_recipe_(default_recipe), parts_(std::move(parts)) {}

Spaces::~Spaces() {
  const MutexLock lock(mutex_);
  for (const auto& [id, space] : by_id_) {
    CAIRN_CHECK(space->references_ == 0, "a reference outlives the spaces");
  }
}

absl::StatusOr<codecs::Recipe> Spaces::RecipeOf(std::string_view name) const {
  return name.empty() ? default_recipe_ : ParseRecipe("recipe", name);
}

absl::StatusOr<SpacePolicy> Spaces::PolicyOf(std::string_view recipe, std::string_view cold_recipe,
                                             uint32_t ttl_s) const {
  SpacePolicy policy;
  policy.ttl_s = ttl_s;
  CAIRN_ASSIGN_OR_RETURN(policy.recipe, RecipeOf(recipe));
  if (cold_recipe.empty()) {
    return policy;
  }
  CAIRN_ASSIGN_OR_RETURN(const codecs::Recipe cold, ParseRecipe("cold_recipe", cold_recipe));
  if (policy.recipe.IsLossless() && !cold.IsLossless()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cold_recipe: ", ToAbsl(cold_recipe), " is lossy, but the space's recipe, ",
                     ToAbsl(codecs::FormatRecipe(policy.recipe)), ", is lossless"));
  }
  if (!codecs::IsDemotable(policy.recipe, cold)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cold_recipe: no exact conversion from ", ToAbsl(codecs::FormatRecipe(policy.recipe)),
        " to ", ToAbsl(cold_recipe), "; there is one to fewer bits of the same code"));
  }
  policy.cold_recipe = cold;
  return policy;
}

absl::StatusOr<Spaces::Opened> Spaces::Open(const proto::SpaceIdentity& identity,
                                            const SpacePolicy& policy, std::string_view tenant) {
  if (identity.tenant != tenant) {
    return absl::PermissionDeniedError("spec.tenant is not the session's tenant");
  }
  return Make(identity, policy);
}

absl::StatusOr<Spaces::Opened> Spaces::Open(const proto::SpaceIdentity& identity,
                                            std::string_view recipe, std::string_view tenant) {
  CAIRN_ASSIGN_OR_RETURN(const SpacePolicy policy, PolicyOf(recipe, "", 0));
  return Open(identity, policy, tenant);
}

absl::StatusOr<Spaces::Opened> Spaces::Restore(const SpaceRecord& record) {
  CAIRN_RETURN_IF_ERROR(proto::Validate(record.identity));
  if (proto::FingerprintOf(record.identity) != record.fingerprint) {
    return absl::InvalidArgumentError("fingerprint: it does not match the identity");
  }
  absl::StatusOr<SpacePolicy> policy = PolicyOf(record.recipe, record.cold_recipe, record.ttl_s);
  if (!policy.ok()) {
    LogWarn("spaces", "recovered space gets the default recipe: its own is unknown",
            {{"recipe", record.recipe},
             {"cold_recipe", record.cold_recipe},
             {"tenant", record.identity.tenant}});
    policy = SpacePolicy{.recipe = default_recipe_, .ttl_s = record.ttl_s};
  }
  return Make(record.identity, *policy);
}

absl::StatusOr<Spaces::Opened> Spaces::Make(const proto::SpaceIdentity& identity,
                                            const SpacePolicy& policy) {
  CAIRN_ASSIGN_OR_RETURN(Opened opened, MakeWith(identity, policy));
  if (!opened.is_created) return opened;
  if (const auto known = parts_.known_policy(*opened.space); known.has_value()) {
    // Fails only if somebody else has installed a profile without the rate just now.
    opened.space->coding().SetPolicy(*known).IgnoreError();
  }
  return opened;
}

absl::StatusOr<Spaces::Opened> Spaces::MakeWith(const proto::SpaceIdentity& identity,
                                                const SpacePolicy& policy) {
  if (identity.groups.size() > limits::kGroupsPerSpaceMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.groups: at most ", limits::kGroupsPerSpaceMax));
  }
  CAIRN_RETURN_IF_ERROR(proto::Validate(identity));
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

  Retired retired;  // destroyed after the lock is released
  const MutexLock lock(mutex_);
  if (const auto found = by_fingerprint_.find(fingerprint); found != by_fingerprint_.end()) {
    return Opened{.space = RefLocked(found->second), .is_created = false};
  }
  CAIRN_RETURN_IF_ERROR(MakeRoom(identity.tenant, &retired));
  uint64_t id = 0;
  while (id == 0 || by_id_.contains(id)) {  // ends, because it draws 64 random bits
    id = std::bit_cast<uint64_t>(RandomBytes<sizeof(id)>());
  }
  std::unique_ptr<SpaceEntry> made(new SpaceEntry(id, fingerprint, identity, std::move(groups),
                                                  std::move(whole), policy, parts_.side_objects,
                                                  parts_.query_squares));
  SpaceEntry* space = made.get();
  by_id_.emplace(id, std::move(made));
  by_fingerprint_.emplace(fingerprint, space);
  shares_.Add(identity.tenant, 1);
  parts_.made(id, identity.tenant);
  return Opened{.space = RefLocked(space), .is_created = true};
}

absl::StatusOr<SpaceRef> Spaces::Find(uint64_t space_id, std::string_view tenant) {
  CAIRN_ASSIGN_OR_RETURN(SpaceRef space, Find(space_id));
  // No tenant learns which numbers others have.
  return space->tenant() == tenant ? absl::StatusOr<SpaceRef>(std::move(space)) : NoSpace();
}

absl::StatusOr<SpaceRef> Spaces::Find(uint64_t space_id) {
  const MutexLock lock(mutex_);
  const auto found = by_id_.find(space_id);
  if (found == by_id_.end()) {
    return NoSpace();
  }
  return RefLocked(found->second.get());
}

absl::StatusOr<SpaceRef> Spaces::Find(const proto::Fingerprint& fingerprint) {
  const MutexLock lock(mutex_);
  const auto found = by_fingerprint_.find(fingerprint);
  if (found == by_fingerprint_.end()) {
    return NoSpace();
  }
  return RefLocked(found->second);
}

std::vector<SpaceRef> Spaces::List() {
  std::vector<SpaceRef> spaces;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, space] : by_id_) {
      spaces.push_back(RefLocked(space.get()));
    }
  }
  std::sort(spaces.begin(), spaces.end(),
            [](const SpaceRef& a, const SpaceRef& b) { return a->id() < b->id(); });
  return spaces;
}

// --- Retiring ------------------------------------------------------------------------------------

// A space without references and blocks gets no new blocks, because publishing needs a reference.
bool Spaces::IsIdle(const SpaceEntry& entry) const {
  return entry.references_ == 0 && !parts_.has_blocks(entry.id());
}

SpaceEntry* Spaces::OldestIdle(std::string_view tenant) {
  SpaceEntry* oldest = nullptr;
  for (const auto& [id, space] : by_id_) {
    if ((tenant.empty() || space->tenant() == tenant) &&
        (oldest == nullptr || space->idle_since_ < oldest->idle_since_) && IsIdle(*space)) {
      oldest = space.get();
    }
  }
  return oldest;
}

void Spaces::Retire(SpaceEntry* entry, Retired* retired) {
  shares_.Remove(entry->tenant(), 1);
  parts_.gone(entry->id());
  by_fingerprint_.erase(entry->fingerprint());
  const auto found = by_id_.find(entry->id());
  retired->push_back(std::move(found->second));
  by_id_.erase(found);
  retired_.Add();
}

absl::Status Spaces::MakeRoom(std::string_view tenant, Retired* retired) {
  // Retire the tenant's own spaces first. Retiring those of others helps as well, because they
  // reduce the tenant's share.
  while (shares_.FreeFor(tenant) == 0) {
    SpaceEntry* oldest = OldestIdle(tenant);
    if (oldest == nullptr) {
      oldest = OldestIdle(std::string_view());
    }
    if (oldest == nullptr) {
      break;
    }
    Retire(oldest, retired);
  }
  return shares_.CheckRoom(tenant, 1);
}

void Spaces::RetireIdle() {
  Retired retired;  // destroyed after the lock is released
  const absl::Time now = parts_.clock.Now();
  const MutexLock lock(mutex_);
  std::vector<SpaceEntry*> due;
  for (const auto& [id, space] : by_id_) {
    if (!IsIdle(*space)) {
      space->idle_since_ = now;
    } else if (now - space->idle_since_ >= absl::Milliseconds(limits::kSpaceIdleMs)) {
      due.push_back(space.get());
    }
  }
  for (SpaceEntry* space : due) {
    Retire(space, &retired);
  }
}

void Spaces::Report(MetricSink& sink) const {
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_spaces", "Spaces.", {}, static_cast<double>(by_id_.size()));
  sink.AddCounter("cairn_spaces_retired_total",
                  "Spaces retired because no session, call or block referred to them.", {},
                  retired_.Value());
  shares_.Report(sink);
}

}  // namespace cairn
