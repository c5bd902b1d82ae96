// SPDX-License-Identifier: Apache-2.0
#pragma once
// The policy in force, and the file that it comes from. A changed file is taken whole or not at
// all. If it cannot be taken, the policy in force stays, and remark() says why.
//
// Thread-safety: Thread-safe. Look() is Owned by one thread.

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/policy/policy.h"
#include "service/sessions.h"

namespace cairn {

class PolicyWatch final : public TenantPolicy {
 public:
  // Reads the file at `path`. `keeps_tenants_apart`: false if clients can read the memory of all
  // tenants, so that a policy may name only one. Errors: InvalidArgument, which names the file, the
  // line and the field.
  static absl::StatusOr<std::unique_ptr<PolicyWatch>> Open(const std::string& path,
                                                           bool keeps_tenants_apart);

  // Whether later policies may name several tenants. REQUIRES: no Look() yet.
  void SetKeepsTenantsApart(bool keeps) { keeps_tenants_apart_ = keeps; }
  // Reads the file. Returns true if a new policy was taken.
  bool Look();
  bool has_many_tenants() const;

  absl::Status MayUse(const PeerIdentity& identity, std::string_view tenant) const override;
  absl::Status MayUseUcx(std::string_view tenant) const override;
  std::optional<uint64_t> SessionsMax(std::string_view tenant) const override;
  absl::Status MayOperate(const PeerIdentity& identity) const override;
  absl::Status MayConnect(const PeerIdentity& identity) const override;
  absl::Status MayBeMember(const PeerIdentity& identity) const override;

  // Why the file is not in force. Empty: it is.
  std::string remark() const;
  void Report(MetricSink& sink) const;

 private:
  PolicyWatch(std::string path, bool keeps_tenants_apart);
  // Parses a text that was read, and checks it.
  absl::StatusOr<Policy> Judge(const absl::StatusOr<std::string>& text) const;

  const std::string path_;
  bool keeps_tenants_apart_;
  absl::StatusOr<std::string> seen_ = std::string();  // judged last; of the thread that looks

  mutable Mutex mutex_;
  Policy policy_ ABSL_GUARDED_BY(mutex_);
  std::string refusal_ ABSL_GUARDED_BY(mutex_);
  Counter loads_, failures_;
};

}  // namespace cairn
