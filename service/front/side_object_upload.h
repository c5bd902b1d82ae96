// SPDX-License-Identifier: Apache-2.0
#pragma once
// PutSideObject: parts of a side object, put together in memory, then installed.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "cairn/v1/store.pb.h"
#include "service/front/call_metrics.h"
#include "service/front/control_call.h"
#include "service/limits.h"

namespace cairn {

// Bytes of side objects that are on their way in. Thread-safety: Thread-safe.
class UploadBudget {
 public:
  // Some of them. Destroying it gives them back. Move-only. The budget must outlive it.
  class Share {
   public:
    Share() = default;
    Share(Share&& source) noexcept
        : budget_(std::exchange(source.budget_, nullptr)),
          tenant_(std::move(source.tenant_)),
          bytes_(source.bytes_) {}
    Share& operator=(Share&&) = delete;
    ~Share();

   private:
    friend class UploadBudget;
    Share(UploadBudget* budget, std::string tenant, uint64_t bytes)
        : budget_(budget), tenant_(std::move(tenant)), bytes_(bytes) {}
    UploadBudget* budget_ = nullptr;
    std::string tenant_;
    uint64_t bytes_ = 0;
  };

  // ResourceExhausted: the tenant, or all of them, have too much on its way in.
  absl::StatusOr<Share> Take(std::string_view tenant, uint64_t bytes);

 private:
  Mutex mutex_;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, uint64_t> by_tenant_ ABSL_GUARDED_BY(mutex_);
};

// What an upload needs. Borrowed for the call's life.
struct UploadParts {
  UploadBudget& budget;
  CallMetrics& calls;
  // The tenant of the session that the first part names. Refuses what Install() would refuse.
  std::function<absl::StatusOr<std::string>(const v1::PutSideObjectRequest& first)> check;
  std::function<absl::StatusOr<v1::PutSideObjectReply>(const v1::PutSideObjectRequest& first,
                                                       std::string_view content)>
      install;
};

ControlCall* StartUpload(const CallPlace& place, const UploadParts& parts);

}  // namespace cairn
