// SPDX-License-Identifier: Apache-2.0
#include "service/space_coding.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "codecs/image/settle.h"
#include "service/limits.h"

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

// Returns true if the profile has the recipe's rate. (A bank has all rates.)
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

// Returns a version that was never returned before. So a space that was retired and made again has
// another version.
uint64_t NextVersion() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

uint32_t ExpiryAt(const SpacePolicy& policy, absl::Time now) {
  return policy.ttl_s == 0 ? 0
                           : static_cast<uint32_t>(std::clamp<int64_t>(
                                 absl::ToUnixSeconds(now) + policy.ttl_s, 1, UINT32_MAX));
}

SpaceCoding::SpaceCoding(uint64_t space_id, std::string_view tenant,
                         std::span<const codecs::GroupShape> groups, const SpacePolicy& policy,
                         SideObjects& side_objects, QuerySquares& query_squares)
    : space_id_(space_id),
      tenant_(tenant),
      groups_(groups),
      side_objects_(side_objects),
      query_squares_(query_squares),
      version_(NextVersion()),
      policy_(policy) {}

SpaceCoding::~SpaceCoding() {
  side_objects_.Forget(space_id_);
  query_squares_.Forget(space_id_);
}

// --- The policy ----------------------------------------------------------------------------------

SpacePolicy SpaceCoding::policy() const {
  const MutexLock lock(mutex_);
  return policy_;
}

bool SpaceCoding::IsInForce(const codecs::Recipe& recipe) const {
  return codecs::FormatRecipe(recipe) == codecs::FormatRecipe(this->recipe());
}

absl::Status SpaceCoding::SetPolicy(const SpacePolicy& policy) {
  const MutexLock changes(changes_);
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    const SideObjectRef current = Current(group, proto::SideObjectKind::kProfile);
    // A mined profile is mined again for another rate.
    if (current.get() != nullptr &&
        side_objects_.OriginOf(current) == SideObjectOrigin::kInstalled) {
      CAIRN_RETURN_IF_ERROR(CheckRate(policy.recipe, group, *current.inputs().profile));
    }
  }
  version_ = NextVersion();
  const MutexLock lock(mutex_);
  policy_ = policy;
  return absl::OkStatus();
}

// --- Side objects --------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<SideObject>> SpaceCoding::Parse(
    uint32_t group, proto::SideObjectKind kind, std::span<const std::byte> bytes) const {
  if (group >= groups_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("group is ", group, ": the space has ", groups_.size(), " groups"));
  }
  if (bytes.size() > limits::kSideObjectBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("content has ", bytes.size(), " bytes: at most ",
                                                   limits::kSideObjectBytesMax));
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<SideObject> parsed, SideObject::Parse(kind, bytes));
  const proto::SideObjectContent& content = parsed->content();
  CAIRN_RETURN_IF_ERROR(CheckGeometry(groups_[group], group, proto::Name(kind), content.head()));
  return parsed;
}

absl::StatusOr<SpaceCoding::Installed> SpaceCoding::Install(uint32_t group,
                                                            proto::SideObjectKind kind,
                                                            std::span<const std::byte> bytes,
                                                            SideObjectOrigin origin) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<SideObject> parsed, Parse(group, kind, bytes));
  const MutexLock changes(changes_);
  if (const codecs::Profile* profile = parsed->content().profile(); profile != nullptr) {
    CAIRN_RETURN_IF_ERROR(CheckRate(recipe(), group, *profile));
  }
  Installed installed = {.id = parsed->id(), .is_new = false};
  CAIRN_ASSIGN_OR_RETURN(installed.is_new, side_objects_.Install({space_id_, group, tenant_},
                                                                 std::move(parsed), origin));
  version_ = NextVersion();
  return installed;
}

absl::StatusOr<SideObjectRef> SpaceCoding::Keep(uint32_t group, proto::SideObjectKind kind,
                                                std::span<const std::byte> bytes) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<SideObject> parsed, Parse(group, kind, bytes));
  return side_objects_.Keep({space_id_, group, tenant_}, std::move(parsed));
}

SideObjectRef SpaceCoding::Current(uint32_t group, proto::SideObjectKind kind) const {
  return side_objects_.Current(space_id_, group, kind);
}

bool SpaceCoding::WantsProfile(uint32_t group) const {
  const codecs::Recipe wanted = recipe();
  if (!wanted.NeedsProfile()) {
    return false;
  }
  const SideObjectRef current = Current(group, proto::SideObjectKind::kProfile);
  return current.get() == nullptr || (side_objects_.OriginOf(current) == SideObjectOrigin::kMined &&
                                      !HasRate(wanted, *current.profile()));
}

SideObjectRef SpaceCoding::MinedProfile(uint32_t group) const {
  SideObjectRef current = Current(group, proto::SideObjectKind::kProfile);
  return current.get() != nullptr && side_objects_.OriginOf(current) == SideObjectOrigin::kMined
             ? std::move(current)
             : SideObjectRef();
}

bool SpaceCoding::Withdraw(uint32_t group, const codecs::Digest& id) {
  const MutexLock changes(changes_);
  const bool is_withdrawn = side_objects_.Withdraw(space_id_, group, id);
  version_ = is_withdrawn ? NextVersion() : version_;
  return is_withdrawn;
}

SideObjectRef SpaceCoding::ChooseRecipe(codecs::ImageSpec* spec) const {
  const codecs::Recipe wanted = recipe();
  SideObjectRef current;
  if (const auto kind = proto::KindFor(wanted); kind.has_value()) {
    current = Current(spec->group, *kind);
  }
  const codecs::Digest id = current.get() == nullptr ? codecs::Digest{} : current.get()->id();
  return codecs::SetRecipeOrExact(wanted, current.inputs(), id, spec) ? std::move(current)
                                                                      : SideObjectRef();
}

SideObjectRef SpaceCoding::Find(const codecs::Digest& id) const {
  return side_objects_.Find(space_id_, id);
}

std::vector<SideObjects::Listed> SpaceCoding::List() const { return side_objects_.List(space_id_); }

uint64_t SpaceCoding::version() const {
  const MutexLock changes(changes_);
  return version_;
}

std::vector<SideObjectRef> SpaceCoding::Describe(SpaceRecord* record) const {
  std::vector<SideObjectRef> named;
  const MutexLock changes(changes_);
  record->version = version_;
  const SpacePolicy policy = this->policy();
  record->recipe = std::string(codecs::FormatRecipe(policy.recipe));
  record->cold_recipe =
      policy.cold_recipe.has_value() ? std::string(codecs::FormatRecipe(*policy.cold_recipe)) : "";
  record->ttl_s = policy.ttl_s;
  record->current.clear();
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    for (const auto kind : {proto::SideObjectKind::kProfile, proto::SideObjectKind::kBank}) {
      SideObjectRef current = Current(group, kind);
      if (current.get() != nullptr) {
        record->current.push_back(
            {.group = group,
             .kind = kind,
             .id = current.get()->id(),
             .is_mined = side_objects_.OriginOf(current) == SideObjectOrigin::kMined});
        named.push_back(std::move(current));
      }
    }
  }
  return named;
}

// --- Queries -------------------------------------------------------------------------------------

bool SpaceCoding::AddQuerySquares(uint32_t group, const codecs::Slice& slice,
                                  std::span<const float> means, uint32_t tokens) {
  return query_squares_.Add({space_id_, group, tenant_}, groups_[group], slice, means, tokens);
}

QuerySquares::Snapshot SpaceCoding::query_squares(uint32_t group) const {
  return query_squares_.Get(space_id_, group);
}

uint64_t SpaceCoding::query_tokens(uint32_t group) const {
  return query_squares_.TokensOf(space_id_, group);
}

void SpaceCoding::ForgetQuerySquares() { query_squares_.Forget(space_id_); }

}  // namespace cairn
