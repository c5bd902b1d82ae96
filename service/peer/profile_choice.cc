// SPDX-License-Identifier: Apache-2.0
#include "service/peer/profile_choice.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "service/peer/homes.h"

namespace cairn {

MinerOrder OrderOfMiners(const View& view, const proto::Fingerprint& space, size_t max) {
  uint64_t run = 0;
  std::memcpy(&run, space.data(), sizeof run);
  struct Scored {
    uint64_t score = 0;
    const Member* member = nullptr;
  };
  std::vector<Scored> scored;
  for (const Member& member : view.members) {
    if (member.state != MemberState::kJoined || !member.has_name()) continue;
    scored.push_back({HomeScore(member.name, run), &member});
  }
  std::ranges::sort(scored, [](const Scored& a, const Scored& b) {
    return std::pair(b.score, a.member->name) < std::pair(a.score, b.member->name);
  });
  MinerOrder order;
  bool is_ahead = true;  // a daemon that drains is behind all
  for (const Scored& one : scored) {
    if (one.member->is_self) {
      is_ahead = false;
      continue;
    }
    if (order.others.size() == max) break;
    order.others.push_back(*one.member);
    order.ahead += is_ahead ? 1 : 0;
  }
  return order;
}

ProfileChoice ChooseProfile(std::span<const ProfileAnswer> answers, size_t ahead,
                            const OwnProfile& own) {
  ProfileChoice choice;
  bool has_leader = false;  // a member that mines before this daemon has a profile
  for (size_t i = 0; i < answers.size(); ++i) {
    const ProfileAnswer& answer = answers[i];
    const bool has_answered = answer.outcome == ProfileAnswer::Outcome::kAnswered;
    const bool mines_before = has_answered && answer.can_mine && (i < ahead || !own.can_mine);
    const bool is_silent = answer.outcome == ProfileAnswer::Outcome::kSilent && i < ahead;
    if (mines_before || is_silent) ++choice.waits_for;
    if (!has_answered || !answer.id.has_value() ||
        std::ranges::find(own.past, *answer.id) != own.past.end()) {
      continue;
    }
    const bool is_leader = mines_before && !std::exchange(has_leader, has_leader || mines_before);
    if (own.id != answer.id && (own.wants || is_leader)) choice.take.push_back(i);
  }
  return choice;
}

bool MayMine(size_t waits_for, absl::Time since, absl::Time now) {
  return now - since >= kMinerWait * static_cast<int64_t>(std::min(waits_for, kMinersWaitedMax));
}

}  // namespace cairn
