// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tiers of the store: the host tier and the optional ones. Put, get and upkeep allocate from
// them. The index derives its limits from them.
//
// Thread-safety: Thread-safe: it never changes.
// Ownership:     owns its tiers. Must outlive the index and every TierExtent.

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
  // `others` has at most one tier per id, and no host tier. REQUIRES: `host` is not null.
  explicit Tiers(std::unique_ptr<HostTier> host,
                 std::vector<std::unique_ptr<CopyTier>> others = {});

  HostTier& host() const { return *host_; }
  // Returns null if there is no such tier.
  CopyTier* Find(TierId id) const;
  // All tiers, the host tier first.
  std::span<CopyTier* const> all() const { return all_; }

  void SetEvictor(Evictor* evictor);
  // Like CopyTier::SetRetired(), for the tier that has the device. Errors: NotFound, naming the
  // devices.
  absl::Status SetRetired(std::string_view path, bool is_retired);
  std::vector<DeviceReport> Devices() const;

  // The functions below call every tier.
  void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys);
  void PolicyChanged(const SpaceRecord& space);
  void SaveGenerations(const std::string& list);
  void SavePolicies(const std::string& list);
  void SaveHints(std::span<const HintRecord> hints);
  bool AwaitFreed(absl::Time deadline);
  void Stop();
  void Report(MetricSink& sink) const;

 private:
  std::unique_ptr<HostTier> host_;
  std::vector<std::unique_ptr<CopyTier>> others_;
  std::vector<CopyTier*> all_;
};

}  // namespace cairn
