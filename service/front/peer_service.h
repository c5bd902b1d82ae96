// SPDX-License-Identifier: Apache-2.0
#pragma once
// Implements the calls of the other members of the cluster: cairn.v1.Peer, and of cairn.v1.Store
// those that read and delete blocks.
//
// Thread-safety: Thread-safe.

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "cairn/v1/peer.pb.h"
#include "service/front/call_metrics.h"
#include "service/front/call_router.h"
#include "service/front/store_service.h"
#include "service/members/generations.h"
#include "service/members/members.h"
#include "service/members/space_policies.h"
#include "service/peer/announced.h"
#include "service/peer/location_table.h"
#include "service/remote/offered_blocks.h"
#include "service/remote/shared_profiles.h"
#include "service/sessions.h"

namespace cairn {

class PeerService {
 public:
  struct Parts {
    const Members& members;
    const Sessions& sessions;  // its policy says who may be a member
    StoreService* store;       // answers what members ask of the store; null: nothing does
    std::string daemon_version;
    // Called with the name of a calling member that is not met yet, restarted or began to drain.
    std::function<void(std::string_view name)> greet;
    Announced& announced;  // takes what members announce into `locations`
    const LocationTable& locations;
    Generations* generations = nullptr;  // null: none are told
    SpacePolicies* policies = nullptr;   // null: none are told
    // Null: this daemon cannot read from members.
    OfferedBlocks* offered = nullptr;
    SharedProfiles* profiles = nullptr;
  };
  explicit PeerService(Parts parts) : parts_(std::move(parts)) {}

  void AddTo(CallRouter& router);
  const Sessions& sessions() const { return parts_.sessions; }
  void Report(MetricSink& sink) const { calls_.Report(sink); }

 private:
  absl::StatusOr<v1::HelloReply> Hello(const ControlCall& call, const v1::HelloRequest& request);
  // Takes the generations of the caller, and answers with this daemon's.
  void Exchange(const ControlCall& call, const v1::HelloRequest& request,
                v1::HelloReply* reply) const;
  absl::StatusOr<v1::AnnounceReply> Announce(const ControlCall& call,
                                             const v1::AnnounceRequest& request);
  absl::StatusOr<v1::LocateReply> Locate(const ControlCall& call, const v1::LocateRequest& request);
  void Offer(const ControlCall& call, const v1::OfferRequest& request,
             const ReplyDone<v1::OfferReply>& done);
  absl::StatusOr<v1::ProfilesReply> Profiles(const ControlCall& call,
                                             const v1::ProfilesRequest& request);
  absl::StatusOr<v1::TellPoliciesReply> TellPolicies(const ControlCall& call,
                                                     const v1::TellPoliciesRequest& request);
  // Checks that a caller may be a member. Errors: PermissionDenied, FailedPrecondition.
  absl::Status CheckMayBe(const ControlCall& call, const v1::PeerSelf& theirs) const;
  // Returns the member of the view that calls. Errors: as CheckMayBe(), PermissionDenied (its
  // certificate is not the one that this member has shown when it was greeted), and Unavailable:
  // the view does not have this process as a member yet; it is greeted.
  absl::StatusOr<const Member*> CheckIs(const ControlCall& call, const v1::PeerSelf& theirs,
                                        const View& view) const;

  const Parts parts_;
  CallMetrics calls_{Call::kHello, Call::kTellPolicies};
};

}  // namespace cairn
