// SPDX-License-Identifier: Apache-2.0
#pragma once
// cairn.v1.Admin over gRPC's callback API.
//
// Thread-safety: Thread-safe; gRPC calls it from its own threads. Verify, the one call that takes
// long,
//                runs on a thread of its own named "verify", one at a time.

#include <functional>
#include <thread>

#include "base/mutex.h"
#include "cairn/v1/admin.grpc.pb.h"
#include "service/front/call_metrics.h"
#include "service/index/block_index.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/upkeep/upkeep.h"

namespace cairn {

class AdminService final : public v1::Admin::CallbackService {
 public:
  struct Parts {  // borrowed
    Spaces& spaces;
    Sessions& sessions;
    BlockIndex& index;
    Upkeep& upkeep;
    std::function<void()> drain;
  };
  explicit AdminService(Parts parts) : parts_(std::move(parts)) {}
  ~AdminService() override { Stop(); }

  // Refuses, and ends, verifications. REQUIRES: their calls are cancelled, or will be over soon.
  void Stop();

  grpc::ServerUnaryReactor* ListSpaces(grpc::CallbackServerContext* context,
                                       const v1::ListSpacesRequest* request,
                                       v1::ListSpacesReply* reply) override;
  grpc::ServerUnaryReactor* ListBlocks(grpc::CallbackServerContext* context,
                                       const v1::ListBlocksRequest* request,
                                       v1::ListBlocksReply* reply) override;
  grpc::ServerWriteReactor<v1::VerifyProgress>* Verify(grpc::CallbackServerContext* context,
                                                       const v1::VerifyRequest* request) override;
  grpc::ServerUnaryReactor* SetPolicy(grpc::CallbackServerContext* context,
                                      const v1::SetPolicyRequest* request,
                                      v1::SetPolicyReply* reply) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request, v1::DrainReply* reply) override;

  void Report(MetricSink& sink) const { calls_.Report(sink); }

 private:
  absl::Status FillBlocks(const v1::ListBlocksRequest& request, v1::ListBlocksReply* reply) const;

  const Parts parts_;
  CallMetrics calls_{Call::kListSpaces, Call::kDrain};
  Mutex mutex_;
  bool is_verifying_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread verify_thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
