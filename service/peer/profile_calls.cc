// SPDX-License-Identifier: Apache-2.0
#include "service/peer/profile_calls.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "proto/convert.h"
#include "service/limits.h"
#include "service/peer/ask_members.h"
#include "service/peer/peer_self.h"

namespace cairn {
namespace {

void Fill(const GroupProfile& profile, v1::GroupProfile* filled) {
  filled->set_group(profile.group);
  if (profile.id.has_value()) {
    filled->set_id(proto::ToBytes(std::as_bytes(std::span(*profile.id))));
  }
  filled->set_can_mine(profile.can_mine);
}

absl::StatusOr<GroupProfile> Parse(const v1::GroupProfile& told) {
  GroupProfile profile{.group = told.group(), .id = std::nullopt, .can_mine = told.can_mine()};
  if (!told.id().empty()) {
    CAIRN_ASSIGN_OR_RETURN(profile.id, proto::FromSideObjectId(told.id()));
  }
  return profile;
}

ProfileAnswer AnswerOf(const absl::StatusOr<v1::ProfilesReply>& reply) {
  using Outcome = ProfileAnswer::Outcome;
  ProfileAnswer answer;
  if (!reply.ok()) {
    const absl::Status& status = reply.status();
    const bool is_silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                           absl::IsCancelled(status);
    answer.outcome = is_silent ? Outcome::kSilent : Outcome::kOut;
    return answer;
  }
  answer.outcome = Outcome::kOut;
  if (reply->groups_size() != 1) return answer;
  const absl::StatusOr<GroupProfile> told = Parse(reply->groups(0));
  if (!told.ok()) return answer;
  return {.outcome = Outcome::kAnswered, .id = told->id, .can_mine = told->can_mine};
}

}  // namespace

absl::StatusOr<ProfileQuestion> ParseProfiles(const v1::ProfilesRequest& request) {
  ProfileQuestion question;
  CAIRN_RETURN_IF_ERROR(proto::ValidateTenant(request.tenant()));
  question.tenant = request.tenant();
  if (request.fingerprint().size() != question.space.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fingerprint: not of ", question.space.size(), " bytes"));
  }
  std::memcpy(question.space.data(), request.fingerprint().data(), question.space.size());
  if (static_cast<size_t>(request.groups_size()) > limits::kGroupsPerSpaceMax) {
    return absl::InvalidArgumentError(absl::StrCat("groups: at most ", limits::kGroupsPerSpaceMax));
  }
  for (const v1::GroupProfile& told : request.groups()) {
    CAIRN_ASSIGN_OR_RETURN(question.groups.emplace_back(), Parse(told));
  }
  return question;
}

v1::ProfilesReply ReplyOf(const std::vector<GroupProfile>& groups) {
  v1::ProfilesReply reply;
  for (const GroupProfile& group : groups) Fill(group, reply.add_groups());
  return reply;
}

std::vector<ProfileAnswer> ProfileCalls::Ask(std::span<const Member> members,
                                             const ProfileQuestion& question, absl::Time deadline) {
  CAIRN_CHECK(question.groups.size() == 1);
  v1::ProfilesRequest request;
  *request.mutable_self() = SelfOf(parts_.members, parts_.daemon_version);
  request.set_tenant(question.tenant);
  request.set_fingerprint(proto::ToBytes(question.space));
  Fill(question.groups[0], request.add_groups());
  std::vector<ProfileAnswer> answers;
  for (const absl::StatusOr<v1::ProfilesReply>& reply : AskMembers(
           parts_.channels, members, &PeerStub::AsyncProfiles, request, deadline, is_stopping_)) {
    answers.push_back(AnswerOf(reply));
  }
  return answers;
}

}  // namespace cairn
