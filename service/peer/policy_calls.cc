// SPDX-License-Identifier: Apache-2.0
#include "service/peer/policy_calls.h"

#include "service/peer/ask_members.h"
#include "service/peer/peer_self.h"

namespace cairn {

std::vector<absl::Status> PolicyCalls::Tell(std::span<const Member> members,
                                            const ToldPolicy& policy, absl::Time deadline) {
  v1::TellPoliciesRequest request;
  *request.mutable_self() = SelfOf(parts_.members, parts_.daemon_version);
  request.set_policies(SerializePolicies({&policy, 1}));
  std::vector<absl::Status> outcomes;
  for (const absl::StatusOr<v1::TellPoliciesReply>& reply :
       AskMembers(parts_.channels, members, &PeerStub::AsyncTellPolicies, request, deadline,
                  is_stopping_)) {
    outcomes.push_back(reply.status());
  }
  return outcomes;
}

}  // namespace cairn
