// SPDX-License-Identifier: Apache-2.0
#pragma once
// Has one member of the cluster mine the profiles of a space, and takes its profiles for the others
// (service/peer/profile_choice.h says which member, and for how long the others wait).
//
// For a group that needs a profile, this daemon asks the other members: at once, when its blocks
// become enough to mine one, and otherwise once in kAskEvery. For a group that has one, it asks the
// first members of the order, unless it mines itself. Who has mined a profile tells the others, and
// those that want one ask soon.
//
// A profile of another member is read over a session of PeerReader and becomes current as a mined
// one: an installed profile stays, and replaces it. A profile that is unsuitable here is not taken
// again.
//
// Thread-safety: Thread-safe. Stop() is Owned by one thread. The thread is named
// "peer-profile-0".
// Locks:         none is held while a member is asked.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/peer_identity.h"
#include "service/members/members.h"
#include "service/mining_turns.h"
#include "service/peer/peer_reader.h"
#include "service/peer/profile_calls.h"
#include "service/remote/workers.h"
#include "service/spaces.h"

namespace cairn {

class SharedProfiles final : public MiningTurns {
 public:
  static constexpr absl::Duration kAskEvery = absl::Minutes(1);
  // After another member has said that it has a profile: the time since the last question.
  static constexpr absl::Duration kAskAgain = absl::Seconds(5);

  struct Parts {  // borrowed
    Spaces& spaces;
    const Members& members;
    ProfileCalls& calls;
    PeerReader& reader;
    const Clock& clock;
    // Whether a member may know of the tenant's spaces.
    std::function<bool(const PeerIdentity& identity, std::string_view tenant)> may_use;
    // Whether there are enough blocks to mine a profile.
    std::function<bool(const SpaceEntry& space, uint16_t group)> can_mine;
  };
  explicit SharedProfiles(Parts parts);
  ~SharedProfiles() override { Stop(); }

  // Later questions are not asked. Idempotent.
  void Stop();

  bool IsOurs(const SpaceRef& space, uint16_t group, Need need, absl::Time now) override;
  void Mined(uint64_t space_id, uint16_t group) override;
  void GaveUp(uint64_t space_id, uint16_t group, const codecs::Digest& id) override;

  // Answers a member. Errors: NotFound (no such space of the tenant), InvalidArgument.
  absl::StatusOr<std::vector<GroupProfile>> Answer(const ProfileQuestion& question);

  void Report(MetricSink& sink) const;

 private:
  using Place = std::pair<uint64_t, uint16_t>;  // space, group
  struct State {
    Need need;
    bool is_asking = false;
    bool is_ours = false;  // as the last answers say
    bool tells = false;    // the next question is to tell others of a new profile
    absl::Time asked = absl::InfinitePast(), next = absl::InfinitePast();
    uint64_t view_hash = 0;                     // of the members that were asked
    absl::Time since = absl::InfiniteFuture();  // when it wanted a profile and could mine one
    std::deque<codecs::Digest> past;            // not taken again; the oldest first
  };

  bool HasOthers(const View& view) const;
  // One question, and what follows from the answers. On the thread.
  void Ask(const SpaceRef& space, uint16_t group);
  // Makes a member's profile current. Returns false if it cannot be had.
  bool Take(const SpaceRef& space, uint16_t group, const Member& from, const codecs::Digest& id);
  // Asks those members that may know of the space. The answers are in the order of the members.
  std::vector<ProfileAnswer> AskMembers(const std::vector<Member>& members,
                                        const ProfileQuestion& question);
  void DropRetired();

  const Parts parts_;
  mutable Mutex mutex_;
  std::map<Place, State> states_ ABSL_GUARDED_BY(mutex_);
  Counter questions_, taken_, unsuitable_, failed_;
  Workers thread_;
};

}  // namespace cairn
