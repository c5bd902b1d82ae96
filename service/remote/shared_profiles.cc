// SPDX-License-Identifier: Apache-2.0
#include "service/remote/shared_profiles.h"

#include <algorithm>

#include "base/log.h"
#include "base/status.h"
#include "proto/convert.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr size_t kProfileJobsMax = 64;
constexpr size_t kPastMax = 8;
// The members that are asked by one that wants a profile or tells of one, and by one that has one.
constexpr size_t kAskedMax = 32, kFollowedMax = 2;
constexpr absl::Duration kProfileAskTime = absl::Seconds(2), kProfileReadTime = absl::Seconds(20);

}  // namespace

SharedProfiles::SharedProfiles(Parts parts)
    : parts_(std::move(parts)), thread_("peer-profile", 1, kProfileJobsMax) {}

void SharedProfiles::Stop() {
  parts_.calls.Stop();
  thread_.Stop();
}

// --- Turns ---------------------------------------------------------------------------------------

bool SharedProfiles::HasOthers(const View& view) const {
  return std::ranges::any_of(view.members, [](const Member& member) {
    return !member.is_self && member.state == MemberState::kJoined && member.has_name();
  });
}

bool SharedProfiles::IsOurs(const SpaceRef& space, uint16_t group, Need need, absl::Time now) {
  const ViewPtr view = parts_.members.view();
  if (!HasOthers(*view)) return true;
  const MutexLock lock(mutex_);
  State& state = states_[{space->id(), group}];
  const bool could_mine = state.since < absl::InfiniteFuture();
  if (!need.wants || !need.can_mine) {
    state.since = absl::InfiniteFuture();
  } else if (!could_mine) {
    state.since = now;
    state.next = absl::InfinitePast();  // nobody mines before it has asked
    state.is_ours = false;
  }
  state.need = need;
  // The member that everybody waits for may be gone, or another one may be there.
  if (need.wants && state.view_hash != view->hash) {
    state.next = std::min(state.next, state.asked + kAskAgain);
  }
  if (!state.is_asking && now >= state.next) {
    state.is_asking = true;
    state.asked = now;
    state.next = now + kAskEvery;
    state.view_hash = view->hash;
    const bool is_queued =
        thread_.Submit([this, asked = space.Share(), group] { Ask(asked, group); });
    if (!is_queued) state.is_asking = false;
  }
  return state.is_ours && !state.is_asking;
}

void SharedProfiles::Mined(uint64_t space_id, uint16_t group) {
  const MutexLock lock(mutex_);
  const auto found = states_.find({space_id, group});
  if (found == states_.end()) return;  // there are no other members
  found->second.tells = true;
  found->second.next = absl::InfinitePast();
}

void SharedProfiles::GaveUp(uint64_t space_id, uint16_t group, const codecs::Digest& id) {
  const MutexLock lock(mutex_);
  const auto found = states_.find({space_id, group});
  if (found == states_.end()) return;
  std::deque<codecs::Digest>& past = found->second.past;
  if (std::ranges::find(past, id) != past.end()) return;
  past.push_back(id);
  if (past.size() > kPastMax) past.pop_front();
}

// --- Questions -----------------------------------------------------------------------------------

void SharedProfiles::DropRetired() {
  const std::vector<SpaceRef> spaces = parts_.spaces.List();
  const MutexLock lock(mutex_);
  std::erase_if(states_, [&](const auto& one) {
    return std::ranges::none_of(
        spaces, [&](const SpaceRef& space) { return space->id() == one.first.first; });
  });
}

std::vector<ProfileAnswer> SharedProfiles::AskMembers(const std::vector<Member>& members,
                                                      const ProfileQuestion& question) {
  ProfileAnswer out;
  out.outcome = ProfileAnswer::Outcome::kOut;
  std::vector<ProfileAnswer> answers(members.size(), out);
  std::vector<Member> asked;
  std::vector<size_t> places;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!parts_.may_use(members[i].identity, question.tenant)) continue;
    asked.push_back(members[i]);
    places.push_back(i);
  }
  const std::vector<ProfileAnswer> said =
      parts_.calls.Ask(asked, question, MonotonicNow() + kProfileAskTime);
  for (size_t i = 0; i < said.size(); ++i) answers[places[i]] = said[i];
  return answers;
}

void SharedProfiles::Ask(const SpaceRef& space, uint16_t group) {
  const Place place(space->id(), group);
  DropRetired();
  OwnProfile own;
  const SideObjectRef current = space->coding().CurrentProfile(group);
  if (current.get() != nullptr) own.id = current.get()->id();
  bool tells = false;
  {
    const MutexLock lock(mutex_);
    State& state = states_[place];
    tells = std::exchange(state.tells, false);
    own.wants = state.need.wants;
    own.can_mine = state.need.can_mine;
    own.past.assign(state.past.begin(), state.past.end());
  }
  const bool asks_many = own.wants || tells;
  MinerOrder order = OrderOfMiners(*parts_.members.view(), space->fingerprint(),
                                   asks_many ? kAskedMax : kFollowedMax);
  const bool is_installed =
      own.id.has_value() && space->coding().MinedProfile(group).get() == nullptr;
  if (!asks_many && (is_installed || (own.can_mine && order.ahead == 0))) order.others.clear();
  const std::vector<ProfileAnswer> answers =
      AskMembers(order.others, {.tenant = std::string(space->tenant()),
                                .space = space->fingerprint(),
                                .groups = {{group, own.id, own.can_mine}}});
  const ProfileChoice choice = ChooseProfile(answers, order.ahead, own);
  bool is_taken = false;
  for (const size_t i : choice.take) {
    is_taken = is_taken || Take(space, group, order.others[i], *answers[i].id);
  }
  {
    const MutexLock lock(mutex_);
    State& state = states_[place];
    state.is_asking = false;
    state.is_ours =
        !is_taken && (own.wants ? MayMine(choice.waits_for, state.since, parts_.clock.Now())
                                : choice.waits_for == 0);
  }
  questions_.Add();
}

bool SharedProfiles::Take(const SpaceRef& space, uint16_t group, const Member& from,
                          const codecs::Digest& id) {
  SpaceCoding& coding = space->coding();
  absl::StatusOr<SpaceCoding::Installed> installed;
  const auto install = [&](std::span<const std::byte> bytes) {
    return coding.Install(group, proto::SideObjectKind::kProfile, bytes, SideObjectOrigin::kMined);
  };
  if (const SideObjectRef here = coding.Find(id); here.get() != nullptr) {
    installed = install(here.get()->bytes());  // of images that were read from a member
  } else {
    const absl::StatusOr<SideObjectHandle> read =
        parts_.reader.GetSideObject(from, space->identity(), proto::ToRecipeName(space->recipe()),
                                    id, MonotonicNow() + kProfileReadTime);
    if (!read.ok()) {
      failed_.Add();
      LogDebug("peer", "a profile was not read", {{"member", from.name}, {"error", read.status()}});
      return false;
    }
    installed = install((*read)->bytes());
  }
  if (absl::IsInvalidArgument(installed.status())) {  // of another rate than the recipe here
    unsuitable_.Add();
    GaveUp(space->id(), group, id);
    return false;
  }
  if (!installed.ok()) {
    failed_.Add();
    return false;
  }
  taken_.Add();
  LogInfo("peer", "took a profile of another member",
          {{"space", space->id()},
           {"group", group},
           {"member", from.name},
           {"id", proto::Hex(std::as_bytes(std::span(id)).first(4))}});
  return true;
}

absl::StatusOr<std::vector<GroupProfile>> SharedProfiles::Answer(const ProfileQuestion& question) {
  const absl::StatusOr<SpaceRef> space = parts_.spaces.Find(question.space);
  if (!space.ok() || (*space)->tenant() != question.tenant) {
    return absl::NotFoundError("no such space");
  }
  std::vector<GroupProfile> answers;
  for (const GroupProfile& asked : question.groups) {
    if (asked.group >= (*space)->groups().size()) {
      return absl::InvalidArgumentError("groups: the space has no such group");
    }
    const auto group = static_cast<uint16_t>(asked.group);
    const SideObjectRef current = (*space)->coding().CurrentProfile(group);
    GroupProfile& answer = answers.emplace_back();
    answer.group = group;
    if (current.get() != nullptr) answer.id = current.get()->id();
    answer.can_mine = (*space)->recipe().NeedsProfile() && parts_.can_mine(**space, group);
    if (!asked.id.has_value()) continue;
    const MutexLock lock(mutex_);
    const auto found = states_.find({(*space)->id(), group});
    if (found == states_.end() || !found->second.need.wants) continue;
    found->second.next = std::min(found->second.next, found->second.asked + kAskAgain);
  }
  return answers;
}

void SharedProfiles::Report(MetricSink& sink) const {
  const auto count = [&sink](std::string_view outcome, const Counter& counter) {
    const MetricLabel label{"outcome", outcome};
    sink.AddCounter("cairn_peer_profiles_total",
                    "Profiles of other members, by what became of them.", {&label, 1},
                    counter.Value());
  };
  sink.AddCounter("cairn_peer_profile_questions_total",
                  "Times that this daemon asked other members for the profile of a group.", {},
                  questions_.Value());
  count("taken", taken_);
  count("unsuitable", unsuitable_);
  count("failed", failed_);
}

}  // namespace cairn
