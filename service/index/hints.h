// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hints from clients on how long blocks are worth keeping. Part of BlockIndex.
//
// A hint names a block, which need not be stored yet. It either retains the block with a priority
// until the hint's time, or demotes the block at that time. A block has at most one hint. The index
// ranks blocks by hints and evicts lower ranks first (TierSet). A hint does not pin a block.
//
// All tenants share one limit for the number of hints (TenantShares).
//
// Thread-safety: Thread-compatible (the index's lock).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/metric.h"
#include "service/index/block.h"
#include "service/index/tenant_shares.h"
#include "service/tier/block_name.h"

namespace cairn {

struct Hint {
  uint8_t priority = 0;     // 1 to kRetainPriorityMax: retained; 0: demoted
  uint32_t due_unix_s = 0;  // the end of the retention, or the time of the demotion

  bool is_demotion() const { return priority == 0; }
};

class Hints {
 public:
  explicit Hints(uint64_t count_max) : shares_("hints", count_max) {}

  // The rank that a hint gives its block before the hint is due.
  static uint8_t RankOf(const Hint& hint) {
    return hint.is_demotion() ? kPlainRank : static_cast<uint8_t>(kPlainRank + hint.priority);
  }

  // Returns null if the block has none.
  const Hint* Find(const BlockName& name) const {
    if (hints_.empty()) {
      return nullptr;
    }
    const auto found = hints_.find(name);
    return found == hints_.end() ? nullptr : &found->second;
  }
  // The rank that a new block of that name gets.
  uint8_t RankOf(const BlockName& name) const {
    const Hint* hint = Find(name);
    return hint == nullptr ? kPlainRank : RankOf(*hint);
  }

  // Takes room for `count` hints of the tenant. Errors: ResourceExhausted, naming the limit.
  absl::Status Reserve(std::string_view tenant, uint64_t count);
  // Ends a Reserve() after Set() has used `used` of the reserved places. `used` may exceed
  // `reserved` if hints ended meanwhile.
  void Settle(std::string_view tenant, uint64_t reserved, uint64_t used);
  // Sets or replaces the hint of a block. Returns true if the block had no hint; the new hint then
  // uses a reserved place.
  bool Set(const BlockName& name, std::string_view tenant, const Hint& hint);
  void Remove(const BlockName& name);

  // Removes and returns a hint that is due. Returns nullopt if no hint is due.
  std::optional<std::pair<BlockName, Hint>> TakeDue(uint32_t now_unix_s);
  // Returns UINT32_MAX if there is no hint.
  uint32_t next_due() const { return by_due_.empty() ? UINT32_MAX : std::get<0>(*by_due_.begin()); }

  // Calls `visit` with each block and its hint.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [name, hint] : hints_) {
      visit(name, hint);
    }
  }
  size_t count() const { return hints_.size(); }
  // A number that increases with each change of the hints.
  uint64_t version() const { return version_; }
  uint64_t bytes() const;
  void Report(MetricSink& sink) const;

 private:
  struct Owner {
    std::string tenant;
    uint64_t count = 0;  // number of hints
  };
  using Due = std::tuple<uint32_t, uint64_t, proto::BlockKey>;
  static Due DueOf(const BlockName& name, const Hint& hint) {
    return {hint.due_unix_s, name.space_id, name.key};
  }

  absl::flat_hash_map<BlockName, Hint> hints_;
  absl::flat_hash_map<uint64_t, Owner> owners_;  // keyed by space
  std::set<Due> by_due_;
  TenantShares shares_;
  uint64_t version_ = 0;
};

}  // namespace cairn
