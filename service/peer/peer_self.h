// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a daemon says of itself to the other members, and whether it accepts what they say.
//
// All functions are pure.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "cairn/v1/peer.pb.h"
#include "service/members/members.h"

namespace cairn {

// The version of cairn.v1.Peer. Members whose versions differ by at most one speak with each other.
inline constexpr uint32_t kPeerProtocol = 1;

// Returns what `members` knows of this daemon.
v1::PeerSelf SelfOf(const Members& members, std::string_view daemon_version);

// Checks whether a daemon that says this can be a member of `cluster`. The text is not trusted.
// Errors: FailedPrecondition, with the reason.
absl::Status CheckSelf(const v1::PeerSelf& theirs, std::string_view cluster);

}  // namespace cairn
