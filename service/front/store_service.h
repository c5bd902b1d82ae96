// SPDX-License-Identifier: Apache-2.0
#pragma once
// cairn.v1.Store over gRPC's callback API. No call blocks a thread: a Match that waits is answered
// by the publish it waited for, or by upkeep at its deadline.
//
// Thread-safety: Thread-safe; gRPC calls it from its own threads.

#include "base/clock.h"
#include "base/metric.h"
#include "cairn/v1/store.grpc.pb.h"
#include "service/front/call_metrics.h"
#include "service/front/session_stream.h"
#include "service/index/block_index.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/tier/host_tier.h"

namespace cairn {

class StoreService final : public v1::Store::CallbackService {
 public:
  struct Parts {  // borrowed
    Spaces& spaces;
    Sessions& sessions;
    BlockIndex& index;
    HostTier& host;
    const Clock& clock;
  };
  StoreService(const Parts& parts, SessionTerms terms);

  grpc::ServerWriteReactor<v1::SessionEvent>* OpenSession(
      grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request) override;
  grpc::ServerUnaryReactor* OpenSpace(grpc::CallbackServerContext* context,
                                      const v1::OpenSpaceRequest* request,
                                      v1::OpenSpaceReply* reply) override;
  grpc::ServerUnaryReactor* Match(grpc::CallbackServerContext* context,
                                  const v1::MatchRequest* request, v1::MatchReply* reply) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseReply* reply) override;
  grpc::ServerUnaryReactor* Contains(grpc::CallbackServerContext* context,
                                     const v1::ContainsRequest* request,
                                     v1::ContainsReply* reply) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteRequest* request,
                                   v1::DeleteReply* reply) override;
  grpc::ServerUnaryReactor* Invalidate(grpc::CallbackServerContext* context,
                                       const v1::InvalidateRequest* request,
                                       v1::InvalidateReply* reply) override;
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const v1::StatsRequest* request, v1::StatsReply* reply) override;
  grpc::ServerUnaryReactor* PutSideObject(grpc::CallbackServerContext* context,
                                          const v1::PutSideObjectRequest* request,
                                          v1::PutSideObjectReply* reply) override;
  grpc::ServerUnaryReactor* GetSideObject(grpc::CallbackServerContext* context,
                                          const v1::GetSideObjectRequest* request,
                                          v1::GetSideObjectReply* reply) override;
  grpc::ServerUnaryReactor* ListSideObjects(grpc::CallbackServerContext* context,
                                            const v1::ListSideObjectsRequest* request,
                                            v1::ListSideObjectsReply* reply) override;

  void Report(MetricSink& sink) const { calls_.Report(sink); }

 private:
  absl::StatusOr<MatchQuery> QueryOf(const v1::MatchRequest& request) const;
  absl::StatusOr<const SpaceEntry*> SpaceOf(const std::string& ticket, uint64_t space_id) const;
  absl::StatusOr<Session> SessionOf(const std::string& ticket) const;
  void Figures(v1::StatsReply* reply) const;

  const Parts parts_;
  const SessionTerms terms_;
  const absl::Time started_;
  CallMetrics calls_{Call::kOpenSpace, Call::kListSideObjects};
};

}  // namespace cairn
