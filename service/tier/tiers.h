// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tiers that the store has: the host tier, and what else there is. Put, get and upkeep take
// their room from it, the index its limits.
//
// Thread-safety: Thread-safe: what it has never changes.
// Ownership:     owns its tiers; outlives the index and every TierExtent.

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/metric.h"
#include "service/tier/host_tier.h"
#include "service/tier/tier.h"

namespace cairn {

class Tiers {
 public:
  // `others`: at most one an id, none of them the host's. REQUIRES: `host` is not null.
  explicit Tiers(std::unique_ptr<HostTier> host,
                 std::vector<std::unique_ptr<CopyTier>> others = {});

  HostTier& host() const { return *host_; }
  // Null where there is none.
  CopyTier* Find(TierId id) const;
  // The host's first.
  std::span<CopyTier* const> all() const { return all_; }

  void SetEvictor(Evictor* evictor);
  // As CopyTier, of whichever tier has it. NotFound names those that there are.
  absl::Status SetRetired(std::string_view path, bool is_retired);
  std::vector<DeviceReport> Devices() const;

  // Of every tier.
  void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys);
  void PolicyChanged(const SpaceRecord& space);
  bool AwaitFreed(absl::Time deadline);
  void Stop();
  void Report(MetricSink& sink) const;

 private:
  std::unique_ptr<HostTier> host_;
  std::vector<std::unique_ptr<CopyTier>> others_;
  std::vector<CopyTier*> all_;
};

}  // namespace cairn
