// SPDX-License-Identifier: Apache-2.0
#pragma once
// A limit that tenants share: how much each one may hold.
//
// Clients can invent tenant names, so with a fixed part per tenant a few names could take
// everything. The limit of a tenant decreases with the square of the part that the others leave:
//
//   max * left * left / 2
//
// where `left` is the part of the total that the other tenants do not hold. It is never less than 1
// while anything is left.
//
//   - Others hold nothing: half of the total.
//   - Others hold a quarter: 9 of 32 parts.
//   - Others hold half: an eighth.
//   - Ten tenants that each took all they may: a seventh of the total is left.
//   - A hundred of them: one part in 53 is left. Of a total of 1,024 it takes 78 to leave nothing.
//
// Names that hold little take little from the others.
//
// Thread-safety: Thread-compatible.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/metric.h"

namespace cairn {

class TenantShares {
 public:
  // `name` says in errors and as a metric's label what is held. It must outlive this.
  TenantShares(std::string_view name, uint64_t max) : name_(name), max_(max) {}

  uint64_t max() const { return max_; }
  uint64_t total() const { return total_; }
  // The amount that the tenant holds.
  uint64_t Of(std::string_view tenant) const;
  // The additional amount that the tenant may hold now.
  uint64_t FreeFor(std::string_view tenant) const;

  // Errors: ResourceExhausted, which is counted, if the tenant may not hold `amount` more. The
  // message names the limit.
  absl::Status CheckRoom(std::string_view tenant, uint64_t amount);
  // Does not check the limit.
  void Add(std::string_view tenant, uint64_t amount);
  // Subtracts an amount that was added. A tenant that holds nothing is forgotten.
  void Remove(std::string_view tenant, uint64_t amount);

  size_t tenant_count() const { return of_.size(); }
  void Report(MetricSink& sink) const;

 private:
  uint64_t ShareOf(uint64_t held) const;

  const std::string_view name_;
  const uint64_t max_;
  absl::flat_hash_map<std::string, uint64_t> of_;
  uint64_t total_ = 0;
  uint64_t refusals_ = 0;
};

}  // namespace cairn
