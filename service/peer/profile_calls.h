// SPDX-License-Identifier: Apache-2.0
#pragma once
// Asks other members which profile they have for a group of a space (cairn.v1.Peer.Profiles).
//
// Thread-safety: Thread-safe.

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cairn/v1/peer.pb.h"
#include "proto/block_key.h"
#include "service/members/members.h"
#include "service/peer/peer_channels.h"
#include "service/peer/profile_choice.h"

namespace cairn {

// A group of a space, and what one member has for it.
struct GroupProfile {
  uint32_t group = 0;
  std::optional<codecs::Digest> id = std::nullopt;  // of its profile
  bool can_mine = false;
};

struct ProfileQuestion {
  std::string tenant;
  proto::Fingerprint space{};
  std::vector<GroupProfile> groups;
};
// Errors: InvalidArgument.
absl::StatusOr<ProfileQuestion> ParseProfiles(const v1::ProfilesRequest& request);
v1::ProfilesReply ReplyOf(const std::vector<GroupProfile>& groups);

class ProfileCalls {
 public:
  struct Parts {
    const Members& members;
    PeerChannels& channels;
    std::string daemon_version;
  };
  explicit ProfileCalls(Parts parts) : parts_(std::move(parts)) {}

  // Tells the members what this daemon has for one group, and returns what each of them has. Waits
  // until `deadline` at most (on the clock of MonotonicNow()), or until Stop(). REQUIRES: one
  // group.
  std::vector<ProfileAnswer> Ask(std::span<const Member> members, const ProfileQuestion& question,
                                 absl::Time deadline);
  void Stop() { is_stopping_.store(true, std::memory_order_relaxed); }

 private:
  const Parts parts_;
  std::atomic<bool> is_stopping_{false};
};

}  // namespace cairn
