// SPDX-License-Identifier: Apache-2.0
#pragma once
// The current policy, and the file that it was loaded from. If a changed file has an error, the
// whole file is rejected. The current policy then stays, and remark() returns the reason. A rule
// for a door that this daemon does not have is no error, because daemons may share a file.
// warnings() names such rules.
//
// Thread-safety: Thread-safe. Look() is Owned by one thread.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/policy/policy.h"
#include "service/sessions.h"

namespace cairn {

class PolicyWatch final : public TenantPolicy {
 public:
  // Reads the file at `path`. `keeps_tenants_apart` is false if clients can read the memory of all
  // tenants. The policy may then name only one tenant. `doors` are the folders of --door. Errors:
  // InvalidArgument, which names the file, the line and the field.
  static absl::StatusOr<std::unique_ptr<PolicyWatch>> Open(const std::string& path,
                                                           bool keeps_tenants_apart,
                                                           std::vector<std::string> doors);

  // Sets whether later policies may name several tenants. REQUIRES: Look() was not called yet.
  void SetKeepsTenantsApart(bool keeps) { keeps_tenants_apart_ = keeps; }
  // Reads the file. Returns true if it loaded a new policy.
  bool Look();
  bool has_many_tenants() const;

  absl::Status MayUse(const PeerIdentity& identity, std::string_view tenant) const override;
  absl::Status MayUseUcx(std::string_view tenant) const override;
  std::optional<uint64_t> SessionsMax(std::string_view tenant) const override;
  absl::Status MayOperate(const PeerIdentity& identity) const override;
  absl::Status MayConnect(const PeerIdentity& identity) const override;
  absl::Status MayBeMember(const PeerIdentity& identity) const override;

  // Returns why the file was rejected, or an empty string if it is the current policy.
  std::string remark() const;
  // Returns one line for each rule of the current policy that matches nobody.
  std::vector<std::string> warnings() const;
  void Report(MetricSink& sink) const;

 private:
  PolicyWatch(std::string path, bool keeps_tenants_apart, std::vector<std::string> doors);
  // Parses and checks a text that was read.
  absl::StatusOr<Policy> Judge(const absl::StatusOr<std::string>& text) const;
  // Makes a policy the current one, and logs it.
  void Take(Policy policy);

  const std::string path_;
  bool keeps_tenants_apart_;
  const std::vector<std::string> doors_;
  absl::StatusOr<std::string> seen_ = std::string();  // the last text; used by Look()

  mutable Mutex mutex_;
  Policy policy_ ABSL_GUARDED_BY(mutex_);
  std::string refusal_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> warnings_ ABSL_GUARDED_BY(mutex_);
  Counter loads_, failures_;
};

}  // namespace cairn
