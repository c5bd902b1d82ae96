// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which member mines the profiles of a space, and whose profile the others take.
//
// The members that have joined and do not drain are in an order of their own for each space, by the
// score of service/peer/homes.h. The first of them that has enough blocks to mine a profile mines,
// and all others take its profile. A member that has enough blocks, and gets no profile from those
// before it, mines after kMinerWait for each of them.
//
// All functions are pure.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "proto/block_key.h"
#include "proto/side_object.h"
#include "service/members/view.h"

namespace cairn {

// How long a member waits for each one before it, and the most members for which it does.
inline constexpr absl::Duration kMinerWait = absl::Minutes(1);
inline constexpr size_t kMinersWaitedMax = 5;

struct MinerOrder {
  std::vector<Member> others;  // in the order, without this daemon
  size_t ahead = 0;            // of these, the first ones are before this daemon
};
// Returns the first `max` others.
MinerOrder OrderOfMiners(const View& view, const proto::Fingerprint& space, size_t max);

// What a member has answered about one group.
struct ProfileAnswer {
  enum class Outcome : uint8_t {
    kSilent,  // nothing; it may be mining
    kOut,     // it takes no part: it does not have the space, or is of an earlier version
    kAnswered,
  };
  Outcome outcome = Outcome::kSilent;
  std::optional<codecs::Digest> id = std::nullopt;  // of its profile
  bool can_mine = false;
};

// What this daemon has for the group.
struct OwnProfile {
  std::optional<codecs::Digest> id = std::nullopt;
  bool wants = false;                     // it needs another one
  bool can_mine = false;                  // it has enough blocks
  std::vector<codecs::Digest> past = {};  // not to be used for the group any more
};

struct ProfileChoice {
  std::vector<size_t> take;  // indices of answers; the first one whose profile can be had is taken
  size_t waits_for = 0;      // members that mine before this daemon, or may
};
// `answers` are in the order of the members; the first `ahead` of them are before this daemon.
// Who wants a profile takes anyone's, that of the first member if possible. Who has one takes only
// that of a member which mines before this daemon.
ProfileChoice ChooseProfile(std::span<const ProfileAnswer> answers, size_t ahead,
                            const OwnProfile& own);

// Whether a daemon may mine that wants a profile and has had enough blocks since `since`.
bool MayMine(size_t waits_for, absl::Time since, absl::Time now);

}  // namespace cairn
