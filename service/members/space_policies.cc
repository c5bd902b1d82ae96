// SPDX-License-Identifier: Apache-2.0
#include "service/members/space_policies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "service/limits.h"
#include "service/members/view.h"

namespace cairn {
namespace {

constexpr char kListVersion = 1;

uint64_t HashOfEntry(const ToldPolicy& policy) {
  uint64_t hash = HashOf(SerializePolicies({&policy, 1}));
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

bool IsNewer(const ToldPolicy& a, const ToldPolicy& b) {
  return std::pair(a.epoch, HashOfEntry(a)) > std::pair(b.epoch, HashOfEntry(b));
}

absl::Status NoPolicies(std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("policies: ", ToAbsl(why)));
}

template <typename T>
void PutNumber(T number, std::string* bytes) {
  for (size_t i = 0; i < sizeof number; ++i) {
    bytes->push_back(static_cast<char>(number >> (8 * i) & 0xFF));
  }
}

void PutText(const std::string& text, std::string* bytes) {
  bytes->push_back(static_cast<char>(text.size()));
  bytes->append(text);
}

// Takes bytes from the front. After one that is not there, all are empty or 0.
class Taker {
 public:
  explicit Taker(std::string_view bytes) : bytes_(bytes) {}
  std::string_view Take(size_t count) {
    if (bytes_.size() < count) is_short_ = true;
    if (is_short_) return {};
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <typename T>
  T TakeNumber() {
    T number = 0;
    const std::string_view taken = Take(sizeof number);
    for (size_t i = 0; i < taken.size(); ++i) {
      number |= T{static_cast<uint8_t>(taken[i])} << (8 * i);
    }
    return number;
  }
  std::string TakeText() { return std::string(Take(TakeNumber<uint8_t>())); }
  bool is_empty() const { return bytes_.empty(); }
  bool is_short() const { return is_short_; }

 private:
  std::string_view bytes_;
  bool is_short_ = false;
};

}  // namespace

// --- Bytes ---------------------------------------------------------------------------------------

std::string SerializePolicies(std::span<const ToldPolicy> list) {
  std::string bytes(1, kListVersion);
  for (const ToldPolicy& one : list) {
    bytes.append(reinterpret_cast<const char*>(one.space.data()), one.space.size());
    PutNumber(one.epoch, &bytes);
    PutNumber(one.ttl_s, &bytes);
    for (const std::string* text : {&one.tenant, &one.recipe, &one.cold_recipe}) {
      PutText(*text, &bytes);
    }
  }
  return bytes;
}

absl::StatusOr<std::vector<ToldPolicy>> ParsePolicies(std::string_view bytes) {
  if (bytes.empty() || bytes[0] != kListVersion) return NoPolicies("unknown version");
  Taker taker(bytes.substr(1));
  std::vector<ToldPolicy> list;
  while (!taker.is_empty()) {
    if (list.size() == limits::kPoliciesMax) return NoPolicies("too many");
    ToldPolicy& one = list.emplace_back();
    const std::string_view space = taker.Take(one.space.size());
    std::copy(space.begin(), space.end(), reinterpret_cast<char*>(one.space.data()));
    one.epoch = taker.TakeNumber<uint64_t>();
    one.ttl_s = taker.TakeNumber<uint32_t>();
    one.tenant = taker.TakeText();
    one.recipe = taker.TakeText();
    one.cold_recipe = taker.TakeText();
    if (taker.is_short()) return NoPolicies("an entry is cut short");
    if (one.epoch == 0) return NoPolicies("an epoch is 0");
    if (std::max(one.recipe.size(), one.cold_recipe.size()) > limits::kToldRecipeBytesMax) {
      return NoPolicies("the name of a recipe is too long");
    }
    CAIRN_RETURN_IF_ERROR(proto::ValidateTenant(one.tenant));
  }
  return list;
}

// --- Entries -------------------------------------------------------------------------------------

bool SpacePolicies::IsAhead(uint64_t epoch) const {
  const int64_t max = absl::ToUnixMillis(parts_.clock.Now()) + limits::kGenerationAheadUsMax / 1000;
  return epoch > static_cast<uint64_t>(std::max<int64_t>(max, 0));
}

bool SpacePolicies::MakeRoom(Tenant& tenant, uint64_t epoch) {
  if (tenant.entries.size() < limits::kPoliciesPerTenantMax && count_ < limits::kPoliciesMax) {
    return true;
  }
  // All members forget the same entry: the oldest one.
  const auto oldest = std::ranges::min_element(tenant.entries, {}, [](const auto& entry) {
    return std::pair(entry.second.epoch, entry.first);
  });
  if (oldest == tenant.entries.end() || oldest->second.epoch >= epoch) return false;
  tenant.hash -= HashOfEntry(oldest->second);
  tenant.entries.erase(oldest);
  --count_;
  return true;
}

SpacePolicies::Kept SpacePolicies::Keep(const ToldPolicy& policy) {
  const MutexLock lock(mutex_);
  auto of_tenant = tenants_.find(policy.tenant);
  if (of_tenant == tenants_.end()) of_tenant = tenants_.try_emplace(policy.tenant).first;
  Tenant& tenant = of_tenant->second;
  if (const auto known = tenant.entries.find(policy.space); known != tenant.entries.end()) {
    if (!IsNewer(policy, known->second)) return Kept::kOlder;
    tenant.hash -= HashOfEntry(known->second);
    tenant.hash += HashOfEntry(policy);
    known->second = policy;
    return Kept::kNew;
  }
  if (!MakeRoom(tenant, policy.epoch)) {
    if (tenant.entries.empty()) tenants_.erase(of_tenant);
    return Kept::kNoRoom;
  }
  tenant.hash += HashOfEntry(policy);
  tenant.entries.emplace(policy.space, policy);
  ++count_;
  return Kept::kNew;
}

absl::StatusOr<ToldPolicy> SpacePolicies::Set(ToldPolicy policy) {
  const MutexLock changes(changes_);
  const std::optional<ToldPolicy> known = Of(policy.tenant, policy.space);
  policy.epoch =
      std::max((known.has_value() ? known->epoch : 0) + 1,
               static_cast<uint64_t>(std::max<int64_t>(absl::ToUnixMillis(parts_.clock.Now()), 1)));
  CAIRN_RETURN_IF_ERROR(parts_.use(policy));
  if (Keep(policy) == Kept::kNoRoom) {
    refused_.Add();
    policy.epoch = 0;
    return policy;
  }
  Save();
  return policy;
}

absl::Status SpacePolicies::LearnUnsaved(const ToldPolicy& told, bool* is_changed) {
  if (IsAhead(told.epoch)) {
    refused_.Add();
    return absl::InvalidArgumentError("policies: an epoch is in the future");
  }
  switch (Keep(told)) {
    case Kept::kOlder:
      return absl::OkStatus();
    case Kept::kNoRoom:
      refused_.Add();
      return absl::FailedPreconditionError("there is no room for another policy of a space");
    case Kept::kNew:
      break;
  }
  *is_changed = true;
  learned_.Add();
  if (const absl::Status used = parts_.use(told); !used.ok()) {
    LogWarn("members", "a policy that another member tells cannot be used here",
            {{"tenant", told.tenant},
             {"space", proto::Hex(std::span(told.space).first(4))},
             {"error", used}});
    return absl::FailedPreconditionError(used.message());
  }
  LogInfo("members", "a space has another policy, as another member says",
          {{"tenant", told.tenant},
           {"space", proto::Hex(std::span(told.space).first(4))},
           {"recipe", told.recipe}});
  return absl::OkStatus();
}

absl::Status SpacePolicies::Learn(const ToldPolicy& told) {
  const MutexLock changes(changes_);
  bool is_changed = false;
  absl::Status status = LearnUnsaved(told, &is_changed);
  if (is_changed) Save();
  return status;
}

void SpacePolicies::Merge(std::span<const ToldPolicy> told, MayUse may_use) {
  const MutexLock changes(changes_);
  bool is_changed = false;
  for (const ToldPolicy& one : told) {
    if (may_use(one.tenant)) (void)LearnUnsaved(one, &is_changed);  // which logs it
  }
  if (is_changed) Save();
}

void SpacePolicies::Restore(std::string_view list) {
  const absl::StatusOr<std::vector<ToldPolicy>> saved = ParsePolicies(list);
  if (!saved.ok()) {
    return LogWarn("members", "the policies of a previous process cannot be read",
                   {{"error", saved.status()}});
  }
  const MutexLock changes(changes_);
  for (const ToldPolicy& one : *saved) {
    if (Keep(one) != Kept::kNew) continue;
    if (const absl::Status used = parts_.use(one); !used.ok()) {
      LogWarn("members", "the policy of a previous process cannot be used", {{"error", used}});
    }
  }
}

void SpacePolicies::Save() {
  parts_.save(ListOf([](std::string_view) { return true; }));
}

// --- What is known -------------------------------------------------------------------------------

std::optional<ToldPolicy> SpacePolicies::Of(std::string_view tenant,
                                            const proto::Fingerprint& space) const {
  const MutexLock lock(mutex_);
  const auto of_tenant = tenants_.find(tenant);
  if (of_tenant == tenants_.end()) return std::nullopt;
  const auto found = of_tenant->second.entries.find(space);
  if (found == of_tenant->second.entries.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> SpacePolicies::Visible(MayUse may_use) const {
  std::vector<std::string> names;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, tenant] : tenants_) names.push_back(name);
  }
  std::erase_if(names, [&](const std::string& name) { return !may_use(name); });
  return names;
}

uint64_t SpacePolicies::HashOf(MayUse may_use) const {
  const std::vector<std::string> visible = Visible(may_use);
  uint64_t hash = kEmptyHash;
  const MutexLock lock(mutex_);
  for (const std::string& name : visible) {
    if (const auto found = tenants_.find(name); found != tenants_.end()) hash += found->second.hash;
  }
  return hash == 0 ? 1 : hash;
}

std::string SpacePolicies::ListOf(MayUse may_use) const {
  const std::vector<std::string> visible = Visible(may_use);
  std::vector<ToldPolicy> list;
  {
    const MutexLock lock(mutex_);
    for (const std::string& name : visible) {
      const auto found = tenants_.find(name);
      if (found == tenants_.end()) continue;
      for (const auto& [space, policy] : found->second.entries) list.push_back(policy);
    }
  }
  return SerializePolicies(list);
}

void SpacePolicies::Report(MetricSink& sink) const {
  {
    const MutexLock lock(mutex_);
    sink.AddGauge("cairn_member_policies",
                  "Spaces whose policy an operator has set, as far as this daemon knows.", {},
                  static_cast<double>(count_));
  }
  sink.AddCounter("cairn_member_policies_learned_total",
                  "Policies of spaces that another member has told.", {}, learned_.Value());
  sink.AddCounter("cairn_member_policies_refused_total",
                  "Policies of spaces that are not remembered: too far in the future, or there is "
                  "no room.",
                  {}, refused_.Value());
}

}  // namespace cairn
