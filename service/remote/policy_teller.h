// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells all other members that the policy of a space was set. Those that are not reached learn it
// with the next greeting (service/peer/hellos.h).
//
// Thread-safety: Thread-safe. Stop() is Owned by one thread. The thread is named "peer-policy-0".

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "base/peer_identity.h"
#include "service/members/members.h"
#include "service/members/space_policies.h"
#include "service/peer/policy_calls.h"
#include "service/remote/workers.h"

namespace cairn {

class PolicyTeller {
 public:
  struct Parts {
    const Members& members;  // borrowed, as `channels` is
    PeerChannels& channels;
    std::string daemon_version;
    // Whether a member may know of the tenant's spaces. Others are not told.
    std::function<bool(const PeerIdentity& identity, std::string_view tenant)> may_use;
  };
  explicit PolicyTeller(Parts parts);
  ~PolicyTeller() { Stop(); }

  // `done` gets the names of the members that did not confirm it by `deadline` (on the clock of
  // MonotonicNow()), and within kTellTime. It runs once: in this call if nobody is told, otherwise
  // on the thread.
  static constexpr absl::Duration kTellTime = absl::Seconds(5);
  using Done = std::function<void(const std::vector<std::string>& unreached)>;
  void Tell(const ToldPolicy& policy, absl::Time deadline, const Done& done);
  void Stop();  // what waits is unreached; idempotent

 private:
  const Parts parts_;
  PolicyCalls calls_;
  Workers thread_;
};

}  // namespace cairn
