// SPDX-License-Identifier: Apache-2.0
#include "service/members/generations.h"

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

constexpr char kVersion = 1;
constexpr size_t kFingerprintBytes = sizeof(proto::Fingerprint);
constexpr size_t kEntryBytesMin = kFingerprintBytes + sizeof(uint64_t) + 1;

uint64_t HashOfEntry(std::string_view tenant, const proto::Fingerprint& space,
                     uint64_t generation) {
  const std::string_view bytes(reinterpret_cast<const char*>(space.data()), space.size());
  uint64_t hash = HashOf(bytes, HashOf(tenant)) ^ generation * 0x9e3779b97f4a7c15;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

absl::Status NoList(std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("generations: ", ToAbsl(why)));
}

}  // namespace

// --- Bytes ---------------------------------------------------------------------------------------

std::string SerializeGenerations(std::span<const SpaceGeneration> list) {
  std::string bytes(1, kVersion);
  for (const SpaceGeneration& one : list) {
    bytes.append(reinterpret_cast<const char*>(one.space.data()), one.space.size());
    for (size_t i = 0; i < sizeof(one.generation); ++i) {
      bytes.push_back(static_cast<char>(one.generation >> (8 * i) & 0xFF));
    }
    bytes.push_back(static_cast<char>(one.tenant.size()));
    bytes.append(one.tenant);
  }
  return bytes;
}

absl::StatusOr<std::vector<SpaceGeneration>> ParseGenerations(std::string_view bytes) {
  if (bytes.empty() || bytes[0] != kVersion) return NoList("unknown version");
  bytes.remove_prefix(1);
  std::vector<SpaceGeneration> list;
  while (!bytes.empty()) {
    if (list.size() == limits::kGenerationsMax) return NoList("too many");
    if (bytes.size() < kEntryBytesMin) return NoList("an entry is cut short");
    SpaceGeneration& one = list.emplace_back();
    std::memcpy(one.space.data(), bytes.data(), kFingerprintBytes);
    bytes.remove_prefix(kFingerprintBytes);
    for (size_t i = 0; i < sizeof(one.generation); ++i) {
      one.generation |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    }
    const size_t tenant_bytes = static_cast<uint8_t>(bytes[sizeof(one.generation)]);
    bytes.remove_prefix(sizeof(one.generation) + 1);
    if (bytes.size() < tenant_bytes) return NoList("an entry is cut short");
    one.tenant = bytes.substr(0, tenant_bytes);
    bytes.remove_prefix(tenant_bytes);
    if (one.generation == 0) return NoList("one is 0");
    CAIRN_RETURN_IF_ERROR(proto::ValidateTenant(one.tenant));
  }
  return list;
}

// --- Entries -------------------------------------------------------------------------------------

const Generations::Entry* Generations::Find(std::string_view tenant,
                                            const proto::Fingerprint& space) const {
  const auto of_tenant = tenants_.find(tenant);
  if (of_tenant == tenants_.end()) return nullptr;
  const auto found = of_tenant->second.entries.find(space);
  return found == of_tenant->second.entries.end() ? nullptr : &found->second;
}

bool Generations::IsAhead(uint64_t generation) const {
  const int64_t max = absl::ToUnixMicros(parts_.clock.Now()) + limits::kGenerationAheadUsMax;
  return generation > static_cast<uint64_t>(std::max<int64_t>(max, 0));
}

bool Generations::MakeRoom(std::string_view name, Tenant& tenant, uint64_t generation) {
  if (tenant.entries.size() < limits::kGenerationsPerTenantMax &&
      count_ < limits::kGenerationsMax) {
    return true;
  }
  // All members forget the same entry: the oldest one.
  const auto oldest = std::ranges::min_element(tenant.entries, {}, [](const auto& entry) {
    return std::pair(entry.second.begun, entry.first);
  });
  if (oldest == tenant.entries.end() || oldest->second.begun >= generation) return false;
  if (const uint64_t done = oldest->second.done; done > 0) {
    tenant.hash -= HashOfEntry(name, oldest->first, done);
  }
  tenant.entries.erase(oldest);
  --count_;
  return true;
}

uint64_t Generations::Begin(std::string_view tenant, const proto::Fingerprint& space,
                            std::optional<uint64_t> generation) {
  const MutexLock lock(mutex_);
  const Entry* known = Find(tenant, space);
  const uint64_t next =
      std::max((known == nullptr ? 0 : known->begun) + 1,
               static_cast<uint64_t>(std::max<int64_t>(absl::ToUnixMicros(parts_.clock.Now()), 1)));
  const uint64_t begun = generation.value_or(next);
  if (known == nullptr) {
    auto of_tenant = tenants_.find(tenant);
    if (of_tenant == tenants_.end()) of_tenant = tenants_.try_emplace(std::string(tenant)).first;
    if (!MakeRoom(tenant, of_tenant->second, begun)) {
      if (of_tenant->second.entries.empty()) tenants_.erase(of_tenant);
      return 0;
    }
    ++count_;
    of_tenant->second.entries.try_emplace(space);
  }
  Entry& entry = tenants_.find(tenant)->second.entries[space];
  entry.begun = std::max(entry.begun, begun);
  return begun;
}

void Generations::End(std::string_view tenant, const proto::Fingerprint& space,
                      uint64_t generation) {
  const MutexLock lock(mutex_);
  const auto of_tenant = tenants_.find(tenant);
  if (of_tenant == tenants_.end()) return;
  const auto found = of_tenant->second.entries.find(space);
  if (found == of_tenant->second.entries.end() || found->second.done >= generation) return;
  uint64_t& done = found->second.done;
  if (done > 0) of_tenant->second.hash -= HashOfEntry(tenant, space, done);
  done = generation;
  of_tenant->second.hash += HashOfEntry(tenant, space, done);
}

Generations::Outcome Generations::Raise(std::string_view tenant, const proto::Fingerprint& space) {
  Outcome outcome;
  outcome.generation = Begin(tenant, space, std::nullopt);
  outcome.deleted_count = parts_.drop(tenant, space);
  if (outcome.generation == 0) {
    refused_.Add();
    return outcome;
  }
  End(tenant, space, outcome.generation);
  Save();
  return outcome;
}

Generations::Outcome Generations::LearnUnsaved(const SpaceGeneration& told, bool* is_changed) {
  Outcome outcome{.generation = Of(told.tenant, told.space)};
  if (told.generation <= outcome.generation) return outcome;
  if (IsAhead(told.generation) || Begin(told.tenant, told.space, told.generation) == 0) {
    refused_.Add();
    return outcome;
  }
  outcome.deleted_count = parts_.drop(told.tenant, told.space);
  End(told.tenant, told.space, told.generation);
  outcome.generation = Of(told.tenant, told.space);
  learned_.Add();
  *is_changed = true;
  return outcome;
}

Generations::Outcome Generations::Learn(const SpaceGeneration& told) {
  bool is_changed = false;
  const Outcome outcome = LearnUnsaved(told, &is_changed);
  if (!is_changed) return outcome;
  Save();
  LogInfo("members", "all blocks of a space were deleted, as another member says",
          {{"tenant", told.tenant},
           {"space", proto::Hex(std::span(told.space).first(4))},
           {"blocks", outcome.deleted_count}});
  return outcome;
}

bool Generations::Merge(std::span<const SpaceGeneration> told, MayUse may_use) {
  uint64_t blocks = 0, spaces = 0;
  bool is_ahead = false;
  for (const SpaceGeneration& one : told) {
    if (one.generation <= Of(one.tenant, one.space) || !may_use(one.tenant)) continue;
    is_ahead = is_ahead || IsAhead(one.generation);
    bool is_changed = false;
    blocks += LearnUnsaved(one, &is_changed).deleted_count;
    spaces += is_changed ? 1 : 0;
  }
  if (spaces > 0) {
    Save();
    LogInfo("members", "all blocks of spaces were deleted while this daemon was away",
            {{"spaces", spaces}, {"blocks", blocks}});
  }
  return !is_ahead;
}

void Generations::Restore(std::string_view list) {
  const absl::StatusOr<std::vector<SpaceGeneration>> saved = ParseGenerations(list);
  if (!saved.ok()) {
    return LogWarn("members", "the generations of a previous process cannot be read",
                   {{"error", saved.status()}});
  }
  for (const SpaceGeneration& one : *saved) {
    if (Begin(one.tenant, one.space, one.generation) != 0) {
      End(one.tenant, one.space, one.generation);
    }
  }
}

void Generations::Save() {
  const MutexLock saving(save_mutex_);
  parts_.save(ListOf([](std::string_view) { return true; }));
}

// --- What is known -------------------------------------------------------------------------------

uint64_t Generations::Of(std::string_view tenant, const proto::Fingerprint& space) const {
  const MutexLock lock(mutex_);
  const Entry* entry = Find(tenant, space);
  return entry == nullptr ? 0 : entry->done;
}

bool Generations::IsCurrent(std::string_view tenant, const proto::Fingerprint& space,
                            uint64_t generation) const {
  const MutexLock lock(mutex_);
  const Entry* entry = Find(tenant, space);
  return generation == (entry == nullptr ? 0 : entry->begun);
}

std::vector<std::string> Generations::Visible(MayUse may_use) const {
  std::vector<std::string> names;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, tenant] : tenants_) names.push_back(name);
  }
  std::erase_if(names, [&](const std::string& name) { return !may_use(name); });
  return names;
}

uint64_t Generations::HashOf(MayUse may_use) const {
  const std::vector<std::string> visible = Visible(may_use);
  uint64_t hash = kEmptyHash;
  const MutexLock lock(mutex_);
  for (const std::string& name : visible) {
    if (const auto found = tenants_.find(name); found != tenants_.end()) hash += found->second.hash;
  }
  return hash == 0 ? 1 : hash;
}

std::string Generations::ListOf(MayUse may_use) const {
  const std::vector<std::string> visible = Visible(may_use);
  std::vector<SpaceGeneration> list;
  {
    const MutexLock lock(mutex_);
    for (const std::string& name : visible) {
      const auto found = tenants_.find(name);
      if (found == tenants_.end()) continue;
      for (const auto& [space, entry] : found->second.entries) {
        if (entry.done > 0) list.push_back({name, space, entry.done});
      }
    }
  }
  return SerializeGenerations(list);
}

size_t Generations::count() const {
  const MutexLock lock(mutex_);
  return count_;
}

void Generations::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_member_generations",
                "Spaces whose blocks were all deleted at some time, as far as this daemon knows.",
                {}, static_cast<double>(count()));
  sink.AddCounter("cairn_member_generations_learned_total",
                  "Times that this daemon dropped the blocks of a space because another member "
                  "said that they were deleted.",
                  {}, learned_.Value());
  sink.AddCounter("cairn_member_generations_refused_total",
                  "Deletions of spaces that are not remembered: too far in the future, or there is "
                  "no room.",
                  {}, refused_.Value());
}

}  // namespace cairn
