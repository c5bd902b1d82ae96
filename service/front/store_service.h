// SPDX-License-Identifier: Apache-2.0
#pragma once
// Implements cairn.v1.Store and cairn.v1.Events. No call blocks a thread. A waiting Match is
// answered by the thread that publishes the missing block, or by upkeep at its deadline.
//
// Thread-safety: Thread-safe; gRPC calls it from its own threads.

#include <optional>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metric.h"
#include "cairn/v1/store.pb.h"
#include "service/front/call_metrics.h"
#include "service/front/call_router.h"
#include "service/front/control_call.h"
#include "service/front/freed_calls.h"
#include "service/front/side_object_upload.h"
#include "service/front/streams.h"
#include "service/get/prefetches.h"
#include "service/index/block_index.h"
#include "service/members/generations.h"
#include "service/remote/remote_blocks.h"
#include "service/remote/whereabouts.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"

namespace cairn {

// Converts policies of spaces from and to messages. Errors: those of Spaces::PolicyOf().
absl::StatusOr<SpacePolicy> FromPolicy(const Spaces& spaces, const v1::SpacePolicy& policy);
v1::SpacePolicy ToPolicy(const SpacePolicy& policy);

// Deletes all blocks of the space at this daemon. Returns their number.
uint64_t DropBlocks(Tiers& tiers, BlockIndex& index, SpaceEntry& space);

class StoreService {
 public:
  struct Parts {  // borrowed
    Spaces& spaces;
    Sessions& sessions;
    BlockIndex& index;
    Tiers& tiers;
    Prefetches& prefetches;
    const Clock& clock;
    // Null: no member can be read from.
    RemoteBlocks* remote = nullptr;
    Whereabouts* whereabouts = nullptr;
    Generations* generations = nullptr;  // null: the daemon belongs to no cluster
  };
  StoreService(const Parts& parts, SessionTerms terms);

  // Registers the calls with the router.
  void AddTo(CallRouter& router);
  // Registers the calls that members of the cluster make of each other. They are answered from this
  // daemon's tiers alone.
  void AddToMembers(CallRouter& router);

  // Answers the calls that wait for a durable change. Idempotent.
  void Stop() { freed_.Stop(); }
  FreedCalls& freed() { return freed_; }
  const Sessions& sessions() const { return parts_.sessions; }
  Audit* audit() const { return terms_.audit; }  // null: none
  void Report(MetricSink& sink) const { calls_.Report(sink); }

 private:
  absl::Status OpenSpace(const v1::OpenSpaceRequest& request, v1::OpenSpaceReply* reply);
  // Registers the calls that both clients and members make. `terms` must outlive the router's
  // calls.
  void AddForAll(CallRouter& router, const SessionTerms& terms);
  // Registers a call that `step` answers at once.
  template <typename Step>
  void Add(CallRouter& router, const char* name, Call call, const RequestBound& bound, Step step);
  // Registers a call that `step` may answer later.
  template <typename Request, typename Reply>
  void AddLate(CallRouter& router, const char* name, Call call, const RequestBound& bound,
               void (StoreService::*step)(const ControlCall&, const Request&,
                                          const ReplyDone<Reply>&));
  // Who asks, and about which space.
  struct Caller {
    Session session;
    SpaceRef space;
  };
  absl::StatusOr<Caller> CallerOf(const std::string& ticket, uint64_t space_id) const;
  // The generation of this daemon's blocks, after it has taken that of the member which asks.
  // nullopt: no member asks.
  std::optional<uint64_t> HearGeneration(const Caller& caller, uint64_t generation);
  void Match(const ControlCall& call, const v1::MatchRequest& request,
             const ReplyDone<v1::MatchReply>& done);
  // Returns whether other members are asked, too, for the session. They are not if the session is a
  // member's, or if the daemon belongs to no cluster.
  bool AsksMembers(const Session& session) const {
    return parts_.remote != nullptr && !session.is_member;
  }
  using MatchDone = std::function<void(absl::StatusOr<MatchAnswer>)>;
  // Finds blocks of other members, too. Until `until`, waits for all keys. Times are on the clock
  // of MonotonicNow().
  void MatchEverywhere(MatchQuery query, absl::Time until, absl::Time deadline, MatchDone done);
  void ReleaseAll(std::string_view tenant, absl::Span<const proto::LeaseToken> leases);
  absl::Status Release(const v1::ReleaseRequest& request, v1::ReleaseReply* reply);
  absl::Status Prefetch(const v1::PrefetchRequest& request, v1::PrefetchReply* reply);
  absl::Status Contains(const v1::ContainsRequest& request, v1::ContainsReply* reply);
  absl::Status Retain(const v1::RetainRequest& request, v1::RetainReply* reply);
  absl::Status Demote(const v1::DemoteRequest& request, v1::DemoteReply* reply);
  // A session may ask about its tenant's spaces, an operator about all spaces.
  absl::StatusOr<v1::ExplainReply> Explain(const ControlCall& call,
                                           const v1::ExplainRequest& request) const;
  void Where(const ControlCall& call, const v1::WhereRequest& request,
             const ReplyDone<v1::WhereReply>& done);
  // What this daemon has of a prefix.
  absl::StatusOr<MemberBlocks> OwnBlocks(const SpaceEntry& space,
                                         const std::vector<proto::BlockKey>& keys);
  // Delete() and Invalidate() answer when no restart brings the blocks back.
  void Delete(const ControlCall& call, const v1::DeleteRequest& request,
              const ReplyDone<v1::DeleteReply>& done);
  void Invalidate(const ControlCall& call, const v1::InvalidateRequest& request,
                  const ReplyDone<v1::InvalidateReply>& done);
  // Deletes all blocks of the space at this daemon.
  Generations::Outcome DropSpace(const Caller& caller, uint64_t generation);
  // Deletes the blocks at other members, too, then answers; all blocks of the space without keys.
  template <typename Reply>
  void DeleteElsewhere(const ControlCall& call, const Caller& caller,
                       std::vector<proto::BlockKey> keys, uint64_t generation, Reply reply,
                       const ReplyDone<Reply>& done);
  absl::Status About(const v1::AboutRequest& request, v1::AboutReply* reply);
  // Returns the statistics of the session's tenant, or of all tenants for an operator. Other peers
  // get only the public statistics.
  void Stats(const ControlCall& call, const v1::StatsRequest& request,
             const ReplyDone<v1::StatsReply>& done);
  absl::StatusOr<std::string> CheckUpload(const v1::PutSideObjectRequest& first) const;
  absl::StatusOr<v1::PutSideObjectReply> Install(const v1::PutSideObjectRequest& first,
                                                 std::string_view content);
  absl::Status GetSideObject(const v1::GetSideObjectRequest& request,
                             v1::GetSideObjectReply* reply);
  absl::Status ListSideObjects(const v1::ListSideObjectsRequest& request,
                               v1::ListSideObjectsReply* reply);

  static absl::StatusOr<MatchQuery> QueryOf(const Caller& caller, const v1::MatchRequest& request);
  absl::StatusOr<SpaceRef> SpaceOf(const std::string& ticket, uint64_t space_id) const;
  absl::StatusOr<Session> SessionOf(const std::string& ticket) const;
  void FillAll(v1::StatsReply* reply) const;
  void FillOfTenant(std::string_view tenant, v1::StatsReply* reply) const;

  const Parts parts_;
  const SessionTerms terms_, member_terms_;
  const absl::Time started_;
  CallMetrics calls_{Call::kOpenSpace, Call::kListSideObjects};
  FreedCalls freed_;
  UploadBudget uploads_;
  const UploadParts upload_parts_;
};

}  // namespace cairn
