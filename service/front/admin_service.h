// SPDX-License-Identifier: Apache-2.0
#pragma once
// Implements cairn.v1.Admin.
//
// Thread-safety: Thread-safe; gRPC calls it from its own threads. Verify, the only long call, runs
//                on its own thread named "verify", one at a time.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/mutex.h"
#include "cairn/v1/admin.pb.h"
#include "service/audit.h"
#include "service/front/call_metrics.h"
#include "service/front/call_router.h"
#include "service/front/freed_calls.h"
#include "service/front/verify_stream.h"
#include "service/index/block_index.h"
#include "service/members/members.h"
#include "service/members/space_policies.h"
#include "service/remote/policy_teller.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/upkeep.h"

namespace cairn {

class DeviceCodec;

class AdminService {
 public:
  struct Parts {  // borrowed
    Spaces& spaces;
    Sessions& sessions;
    BlockIndex& index;
    Upkeep& upkeep;
    Tiers& tiers;
    FreedCalls& freed;
    std::function<void()> drain;
    const DeviceCodec* codec = nullptr;  // of a device that no tier has; null: none
    Audit* audit = nullptr;              // null: none
    const Members* members = nullptr;    // null: the daemon belongs to no cluster
    std::string members_source = {};     // as configured
    // Null: the daemon belongs to no cluster.
    SpacePolicies* policies = nullptr;
    PolicyTeller* teller = nullptr;
  };
  explicit AdminService(Parts parts) : parts_(std::move(parts)) {}
  ~AdminService() { Stop(); }

  // Refuses new verifications and stops the running one. REQUIRES: the running Verify call is
  // cancelled, or ends soon.
  void Stop();

  // Registers the calls with the router.
  void AddTo(CallRouter& router);

  void Report(MetricSink& sink) const { calls_.Report(sink); }

 private:
  absl::Status ListSpaces(const v1::ListSpacesRequest& request, v1::ListSpacesReply* reply);
  absl::Status ListBlocks(const v1::ListBlocksRequest& request, v1::ListBlocksReply* reply);
  // Answers when the change is durable, and other members have confirmed it.
  void SetPolicy(const ControlCall& call, const v1::SetPolicyRequest& request,
                 const ReplyDone<v1::SetPolicyReply>& done);
  // Sets the policy of the space here. Returns what the other members are to be told, or nullopt.
  absl::StatusOr<std::optional<ToldPolicy>> SetHere(SpaceEntry& space, const SpacePolicy& policy);
  absl::Status ListTiers(const v1::ListTiersRequest& request, v1::ListTiersReply* reply);
  absl::Status ListMembers(const v1::ListMembersRequest& request, v1::ListMembersReply* reply);
  absl::StatusOr<v1::SetDeviceReply> SetDevice(const ControlCall& call,
                                               const v1::SetDeviceRequest& request);
  absl::StatusOr<v1::DrainReply> Drain(const ControlCall& call);
  // Writes the change to the audit file. Errors: Unavailable; then the change must not be made.
  absl::Status Announce(const ControlCall& call, std::string_view name,
                        const google::protobuf::Message& request);
  // Notes the outcome in the audit file, then calls `done`.
  template <typename Reply>
  ReplyDone<Reply> Noted(const ControlCall& call, std::string_view name,
                         const ReplyDone<Reply>& done) const {
    if (parts_.audit == nullptr) return done;
    return [audit = parts_.audit, peer = call.identity(), name, done](absl::StatusOr<Reply> reply) {
      audit->Outcome(name, peer, reply.status());
      done(std::move(reply));
    };
  }
  // Starts a verification thread, unless one runs.
  absl::Status Verify(VerifyStream& stream, uint64_t space_id);
  void RunVerify(VerifyStream& stream, uint64_t space_id);

  const Parts parts_;
  CallMetrics calls_{Call::kListSpaces, Call::kListMembers};
  const VerifyStream::Begin verify_ = [this](VerifyStream& stream, uint64_t space_id) {
    return Verify(stream, space_id);
  };
  Mutex mutex_;
  bool is_verifying_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread verify_thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
