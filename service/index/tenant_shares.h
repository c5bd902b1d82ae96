// SPDX-License-Identifier: Apache-2.0
#pragma once
// A limit that tenants share. It determines how much each tenant may hold.
//
// Clients can invent tenant names. With a fixed share per tenant, a few names could take
// everything. Therefore the limit of a tenant decreases with the square of the part that the other
// tenants leave:
//
//    max * left * left / 2
//
// `left` is the part of the total that the other tenants do not hold. The limit is at least 1 while
// anything is left. Examples:
//
// - The others hold nothing. The limit is half of the total.
// - The others hold a quarter. The limit is 9/32 of the total.
// - The others hold half. The limit is an eighth of the total.
// - Ten tenants have each taken their maximum. A seventh of the total is left.
// - A hundred tenants have each taken their maximum. 1/53 is left. If the total is 1,024, nothing
//   is left after 78 tenants.
//
// A tenant that holds little hardly lowers the limits of the others.
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
  // `name` names the limited resource, in errors and as a metric's label. It must outlive this
  // object.
  TenantShares(std::string_view name, uint64_t max) : name_(name), max_(max) {}

  uint64_t max() const { return max_; }
  uint64_t total() const { return total_; }
  // How much the tenant holds.
  uint64_t Of(std::string_view tenant) const;
  // How much more the tenant may hold now.
  uint64_t FreeFor(std::string_view tenant) const;

  // Errors: ResourceExhausted, which is counted, if the tenant may not hold `amount` more. The
  // message names the limit.
  absl::Status CheckRoom(std::string_view tenant, uint64_t amount);
  // Adds an amount without checking the limit.
  void Add(std::string_view tenant, uint64_t amount);
  // Subtracts an amount that was added. Removes a tenant that holds nothing.
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
