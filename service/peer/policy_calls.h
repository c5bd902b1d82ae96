// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells other members the policy of a space (cairn.v1.Peer.TellPolicies).
//
// Thread-safety: Thread-safe.

#include <atomic>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/members/members.h"
#include "service/members/space_policies.h"
#include "service/peer/peer_channels.h"

namespace cairn {

class PolicyCalls {
 public:
  struct Parts {
    const Members& members;
    PeerChannels& channels;
    std::string daemon_version;
  };
  explicit PolicyCalls(Parts parts) : parts_(std::move(parts)) {}

  // Returns for each member whether it has taken the policy. Waits until `deadline` at most (on the
  // clock of MonotonicNow()), or until Stop(). Errors: FailedPrecondition (it has taken it, but
  // cannot use it), Unimplemented (an older member), and those of a call.
  std::vector<absl::Status> Tell(std::span<const Member> members, const ToldPolicy& policy,
                                 absl::Time deadline);
  void Stop() { is_stopping_.store(true, std::memory_order_relaxed); }

 private:
  const Parts parts_;
  std::atomic<bool> is_stopping_{false};
};

}  // namespace cairn
