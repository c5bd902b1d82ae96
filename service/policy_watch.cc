// SPDX-License-Identifier: Apache-2.0
#include "service/policy_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"

namespace cairn {
namespace {

// The time for which a file must be unchanged, so that no partly written file is read.
constexpr absl::Duration kSettleTime = absl::Milliseconds(20);

absl::StatusOr<std::string> ReadText(const std::string& path) {
  return ReadFile(path, kPolicyBytesMax);
}

}  // namespace

PolicyWatch::PolicyWatch(std::string path, bool keeps_tenants_apart, std::vector<std::string> doors)
    : path_(std::move(path)),
      keeps_tenants_apart_(keeps_tenants_apart),
      doors_(std::move(doors)),
      policy_(Policy::Parts()) {}

absl::StatusOr<std::unique_ptr<PolicyWatch>> PolicyWatch::Open(const std::string& path,
                                                               bool keeps_tenants_apart,
                                                               std::vector<std::string> doors) {
  auto watch =
      std::unique_ptr<PolicyWatch>(new PolicyWatch(path, keeps_tenants_apart, std::move(doors)));
  watch->seen_ = ReadText(path);
  CAIRN_ASSIGN_OR_RETURN(Policy policy, watch->Judge(watch->seen_));
  watch->Take(std::move(policy));
  return watch;
}

void PolicyWatch::Take(Policy policy) {
  loads_.Add();
  LogInfo("policy", "loaded",
          {{"file", path_}, {"rules", policy.rule_count()}, {"denied", policy.deny_count()}});
  std::vector<std::string> warnings;
  for (const Policy::Door& door : policy.doors()) {
    if (std::ranges::find(doors_, door.folder) != doors_.end()) continue;
    LogWarn("policy", "the rule matches nobody: this daemon has no such door",
            {{"rule", door.place}, {"door", door.folder}});
    warnings.push_back(
        absl::StrCat("policy: ", door.place, ": ", door.folder,
                     " is no door of this daemon (--door): the rule matches nobody"));
  }
  const MutexLock lock(mutex_);
  refusal_.clear();
  warnings_ = std::move(warnings);
  policy_ = std::move(policy);
}

absl::StatusOr<Policy> PolicyWatch::Judge(const absl::StatusOr<std::string>& text) const {
  CAIRN_RETURN_IF_ERROR(text.status());
  CAIRN_ASSIGN_OR_RETURN(Policy policy,
                         Policy::Parse(*text, path_.substr(path_.find_last_of('/') + 1)));
  if (!keeps_tenants_apart_ && policy.has_many_tenants()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_,
                     ": identities: more than one tenant, and clients of the socket can "
                     "read all of the host tier: set --map off"));
  }
  return policy;
}

bool PolicyWatch::Look() {
  absl::StatusOr<std::string> text = ReadText(path_);
  if (text == seen_) return false;
  absl::SleepFor(kSettleTime);
  if (ReadText(path_) != text) return false;  // the next Look() reads it again
  seen_ = std::move(text);
  absl::StatusOr<Policy> policy = Judge(seen_);
  if (!policy.ok()) {
    failures_.Add();
    LogError("policy", "not taken: the one before stays in force", {{"error", policy.status()}});
    const MutexLock lock(mutex_);
    refusal_ = std::string(policy.status().message());
    return false;
  }
  Take(*std::move(policy));
  return true;
}

bool PolicyWatch::has_many_tenants() const {
  const MutexLock lock(mutex_);
  return policy_.has_many_tenants();
}

absl::Status PolicyWatch::MayUse(const PeerIdentity& identity, std::string_view tenant) const {
  const MutexLock lock(mutex_);
  return policy_.MayUse(identity, tenant);
}

absl::Status PolicyWatch::MayUseUcx(std::string_view tenant) const {
  const MutexLock lock(mutex_);
  if (policy_.TenantOf(tenant).ucx) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "tenant: the policy does not allow it UCX, which identifies nobody (tenants: ucx: true)");
}

std::optional<uint64_t> PolicyWatch::SessionsMax(std::string_view tenant) const {
  const MutexLock lock(mutex_);
  return policy_.TenantOf(tenant).sessions_max;
}

absl::Status PolicyWatch::MayOperate(const PeerIdentity& identity) const {
  const MutexLock lock(mutex_);
  return policy_.MayOperate(identity);
}

absl::Status PolicyWatch::MayConnect(const PeerIdentity& identity) const {
  const MutexLock lock(mutex_);
  return policy_.MayConnect(identity);
}

absl::Status PolicyWatch::MayBeMember(const PeerIdentity& identity) const {
  const MutexLock lock(mutex_);
  return policy_.MayBeMember(identity);
}

std::string PolicyWatch::remark() const {
  const MutexLock lock(mutex_);
  if (refusal_.empty()) return {};
  return absl::StrCat("policy: not taken: ", refusal_, "; the one before stays in force");
}

std::vector<std::string> PolicyWatch::warnings() const {
  const MutexLock lock(mutex_);
  return warnings_;
}

void PolicyWatch::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_policy_loads_total", "Policies that were taken, the first included.", {},
                  loads_.Value());
  sink.AddCounter("cairn_policy_load_failures_total",
                  "Changed policy files that were not taken: the one before stays in force.", {},
                  failures_.Value());
}

}  // namespace cairn
