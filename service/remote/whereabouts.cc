// SPDX-License-Identifier: Apache-2.0
#include "service/remote/whereabouts.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "base/log.h"
#include "proto/convert.h"
#include "service/limits.h"
#include "service/members/roll.h"

namespace cairn {
namespace {

constexpr int kWhereThreads = 8;
// A question waits as one job, and then as one for each member.
constexpr size_t kQuestionsMax = limits::kWheresMax * (limits::kWhereMembersMax + 1);
constexpr double kLocateShare = 0.25;  // of the time that a question has

// Texts that name no address: callers are no operators.
std::string_view FailureOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return "it did not answer in time";
    case absl::StatusCode::kUnavailable:
      return "it cannot be reached";
    case absl::StatusCode::kUnimplemented:
      return "its version does not know this call";
    case absl::StatusCode::kPermissionDenied:
      return "it does not give this member the tenant";
    case absl::StatusCode::kResourceExhausted:
      return "too many questions";
    default:
      return "it could not answer";
  }
}

MemberBlocks Failed(const Member& member, const absl::Status& status) {
  LogDebug("peer", "a member did not say what it has", {{"name", member.name}, {"error", status}});
  return {.member = member.name, .tiers = {}, .failure = std::string(FailureOf(status))};
}

}  // namespace

struct Whereabouts::Asking {
  PeerQuestion question;
  proto::Fingerprint space;
  absl::Time deadline;
  Done done;
  Mutex mutex;
  size_t open ABSL_GUARDED_BY(mutex) = 0;  // members that have not answered
  WhereResult result ABSL_GUARDED_BY(mutex);
};

Whereabouts::Whereabouts(const Parts& parts)
    : parts_(parts), workers_("peer-where", kWhereThreads, kQuestionsMax) {}

bool Whereabouts::Admit() {
  const MutexLock lock(mutex_);
  if (running_ == limits::kWheresMax) return false;
  ++running_;
  return true;
}

void Whereabouts::Leave() {
  const MutexLock lock(mutex_);
  --running_;
}

void Whereabouts::Find(const SpaceEntry& space, std::vector<proto::BlockKey> keys,
                       absl::Time deadline, Done done) {
  std::vector<Member> others = parts_.members.view()->Others(kMembersMax);
  if (others.empty() || keys.empty()) {
    WhereResult nobody;
    nobody.unasked_count = static_cast<uint32_t>(others.size());
    return done(std::move(nobody));
  }
  auto asking = std::make_shared<Asking>();
  asking->question.identity = space.identity();
  asking->question.recipe = proto::ToRecipeName(space.recipe());
  asking->question.keys = std::move(keys);
  asking->space = space.fingerprint();
  asking->deadline = deadline;
  asking->done = std::move(done);
  if (Admit()) {
    if (workers_.Submit([this, asking, others] { Ask(asking, others); })) return;
    Leave();
  }
  asking->done(
      absl::ResourceExhaustedError("too many calls ask where blocks are: ask again later"));
}

std::vector<Member> Whereabouts::Choose(const std::vector<Member>& others, const Asking& asking) {
  if (others.size() <= kAllAskedMax) return others;
  const absl::Time now = MonotonicNow();
  const Located located = parts_.locator.Locate(asking.space, asking.question.keys, 0,
                                                now + (asking.deadline - now) * kLocateShare);
  absl::flat_hash_map<std::string_view, size_t> depths;  // of the deepest block, from 1
  for (size_t i = 0; i < located.holders.size(); ++i) {
    for (const uint16_t holder : located.holders[i]) depths[located.members[holder].name] = i + 1;
  }
  std::vector<Member> chosen;
  for (const Member& member : others) {
    if (depths.contains(member.name)) chosen.push_back(member);
  }
  std::ranges::stable_sort(chosen, std::greater<>(),
                           [&](const Member& member) { return depths.at(member.name); });
  chosen.resize(std::min(chosen.size(), limits::kWhereMembersMax));
  return chosen;
}

void Whereabouts::Ask(const std::shared_ptr<Asking>& asking, const std::vector<Member>& others) {
  const std::vector<Member> members = Choose(others, *asking);
  {
    const MutexLock lock(asking->mutex);
    asking->result.unasked_count = static_cast<uint32_t>(others.size() - members.size());
    asking->open = members.size() + 1;  // one more for this function
  }
  for (const Member& member : members) {
    if (!workers_.Submit([this, asking, member] { AskOne(*asking, member); })) {
      Add(*asking, Failed(member, absl::ResourceExhaustedError("stopping")));
    }
  }
  Add(*asking, {});
}

void Whereabouts::AskOne(Asking& asking, const Member& member) {
  absl::StatusOr<MemberBlocks> answer =
      parts_.reader.Where(member, asking.question, asking.deadline);
  if (!answer.ok()) answer = Failed(member, answer.status());
  answer->is_draining = answer->is_draining || member.state == MemberState::kDraining;
  Add(asking, *std::move(answer));
}

void Whereabouts::Add(Asking& asking, MemberBlocks answer) {
  WhereResult result;
  {
    const MutexLock lock(asking.mutex);
    if (!answer.member.empty()) asking.result.members.push_back(std::move(answer));
    if (--asking.open > 0) return;
    result = std::move(asking.result);
  }
  std::ranges::sort(result.members, [](const MemberBlocks& a, const MemberBlocks& b) {
    return a.block_count != b.block_count ? a.block_count > b.block_count : a.member < b.member;
  });
  Leave();
  asking.done(std::move(result));
}

}  // namespace cairn
