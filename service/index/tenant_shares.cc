// SPDX-License-Identifier: Apache-2.0
#include "service/index/tenant_shares.h"

#include "absl/numeric/int128.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn {

uint64_t TenantShares::Of(std::string_view tenant) const {
  const auto found = of_.find(ToAbsl(tenant));
  return found == of_.end() ? 0 : found->second;
}

uint64_t TenantShares::ShareOf(uint64_t held) const {
  const uint64_t others = total_ - held;
  const absl::uint128 left = max_ > others ? max_ - others : 0;
  const absl::uint128 twice = absl::uint128(max_) * 2;
  return max_ == 0 ? 0 : static_cast<uint64_t>((left * left + twice - 1) / twice);
}

uint64_t TenantShares::FreeFor(std::string_view tenant) const {
  const uint64_t held = Of(tenant), share = ShareOf(held);
  return share > held && max_ > total_ ? std::min(share - held, max_ - total_) : 0;
}

absl::Status TenantShares::CheckRoom(std::string_view tenant, uint64_t amount) {
  if (amount <= FreeFor(tenant)) {
    return absl::OkStatus();
  }
  ++refusals_;
  const uint64_t held = Of(tenant);
  // The text does not name the share, because it depends on other tenants.
  return absl::ResourceExhaustedError(absl::StrCat(ToAbsl(name_), ": the tenant holds ", held,
                                                   " and asks for ", amount,
                                                   " more: over its share of ", max_));
}

void TenantShares::Add(std::string_view tenant, uint64_t amount) {
  if (amount > 0) {
    of_[ToAbsl(tenant)] += amount;
    total_ += amount;
  }
}

void TenantShares::Remove(std::string_view tenant, uint64_t amount) {
  if (amount == 0) {
    return;
  }
  const auto found = of_.find(ToAbsl(tenant));
  CAIRN_CHECK(found != of_.end() && found->second >= amount);
  found->second -= amount;
  if (found->second == 0) {
    of_.erase(found);
  }
  total_ -= amount;
}

void TenantShares::Report(MetricSink& sink) const {
  const MetricLabel labels[] = {{"limit", name_}};
  sink.AddCounter("cairn_limit_refusals_total",
                  "Refusals because a tenant has its share of a limit, by limit.", labels,
                  refusals_);
}

}  // namespace cairn
