// SPDX-License-Identifier: Apache-2.0
#pragma once
// PutSideObject: collects the parts of a side object in memory, then installs it.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/handle.h"
#include "base/mutex.h"
#include "cairn/v1/store.pb.h"
#include "service/front/call_metrics.h"
#include "service/front/control_call.h"
#include "service/limits.h"

namespace cairn {

// A budget for the bytes of incomplete uploads. Thread-safety: Thread-safe.
class UploadBudget {
  struct TenantBytes {
    std::string tenant;
    uint64_t bytes = 0;
  };
  void GiveBack(TenantBytes share);

 public:
  // A part of the budget. Destroying the handle returns the bytes. The budget must outlive it.
  using Share = Handle<UploadBudget, TenantBytes, &UploadBudget::GiveBack>;

  // Errors: ResourceExhausted (the uploads of the tenant, or of all tenants, are too large).
  absl::StatusOr<Share> Take(std::string_view tenant, uint64_t bytes);

 private:
  Mutex mutex_;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, uint64_t> by_tenant_ ABSL_GUARDED_BY(mutex_);
};

// The components that an upload uses. Borrowed for the call's lifetime.
struct UploadParts {
  UploadBudget& budget;
  CallMetrics& calls;
  // Returns the tenant of the session that the first part names. Fails in every case in which
  // Install() would fail.
  std::function<absl::StatusOr<std::string>(const v1::PutSideObjectRequest& first)> check;
  std::function<absl::StatusOr<v1::PutSideObjectReply>(const v1::PutSideObjectRequest& first,
                                                       std::string_view content)>
      install;
};

ControlCall* StartUpload(const CallPlace& place, const UploadParts& parts);

}  // namespace cairn
