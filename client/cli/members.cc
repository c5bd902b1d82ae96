// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

std::string_view StateName(v1::MemberState state) {
  switch (state) {
    case v1::MEMBER_STATE_UNMET:
      return "unmet";
    case v1::MEMBER_STATE_JOINED:
      return "joined";
    case v1::MEMBER_STATE_HELD:
      return "held";
    case v1::MEMBER_STATE_DRAINING:
      return "draining";
    case v1::MEMBER_STATE_REFUSED:
      return "refused";
    default:
      return "?";
  }
}

std::string Seconds(uint64_t ms) {
  return absl::FormatDuration(absl::Trunc(absl::Milliseconds(ms), absl::Seconds(1)));
}

void PrintJson(const v1::ListMembersReply& reply) {
  JsonWriter json;
  json.BeginObject()
      .Field("cluster", reply.cluster())
      .Field("source", reply.source())
      .Field("source_error", reply.source_error())
      .Field("source_silence_ms", reply.source_silence_ms())
      .Field("view_hash", absl::StrFormat("%016x", reply.view_hash()))
      .Field("guarded", reply.guarded())
      .Key("members")
      .BeginArray();
  for (const v1::MemberInfo& member : reply.members()) {
    json.BeginObject()
        .Field("name", member.name())
        .Field("address", member.address())
        .Field("zone", member.zone())
        .Field("state", StateName(member.state()))
        .Field("reason", member.reason())
        .Field("self", member.self())
        .Field("state_ms", member.state_ms())
        .EndObject();
  }
  json.EndArray().EndObject().Print();
}

void PrintMembers(const v1::ListMembersReply& reply) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::MemberInfo& member : reply.members()) {
    rows.push_back({member.name(), member.address(), member.zone().empty() ? "-" : member.zone(),
                    std::string(StateName(member.state())), Seconds(member.state_ms()),
                    member.self() ? "this daemon" : member.reason()});
  }
  PrintTable({"NAME", "ADDRESS", "ZONE", "STATE", "FOR", ""}, rows);
  absl::PrintF("\ncluster %s, view %016x, source %s, answered %s ago\n", reply.cluster(),
               reply.view_hash(), reply.source(), Seconds(reply.source_silence_ms()));
  if (!reply.source_error().empty()) {
    absl::PrintF("the source cannot be read: %s; the members known stay\n", reply.source_error());
  }
  if (reply.guarded()) {
    absl::PrintF("the source lacks more than a third of the members; they stay for ten minutes\n");
  }
}

absl::Status RunMembers(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::ListMembersReply reply, admin->ListMembers(deadline));
  if (reply.cluster().empty()) {
    return absl::FailedPreconditionError(
        "the daemon belongs to no cluster: --members of cairnd is off");
  }
  if (arguments.is_json()) {
    PrintJson(reply);
  } else {
    PrintMembers(reply);
  }
  return absl::OkStatus();
}

}  // namespace

const Command kMembers{
    .name = "members",
    .operands = "",
    .summary = "Shows the members of the cluster as the daemon knows them",
    .examples =
        "  cairnctl members\n"
        "  cairnctl members --json\n",
    .details =
        "States of a member:\n"
        "  unmet     the source lists it; it has not answered yet\n"
        "  joined    it answers, and is used\n"
        "  held      the source no longer lists it; it is used until --member-grace of cairnd\n"
        "            is over, or for ten minutes if more than a third of the members are missing\n"
        "  draining  it is about to stop\n"
        "  refused   it cannot be a member; the last column says why\n"
        "\n"
        "Daemons with the same view know the same members.\n",
    .flags = {},
    .operands_min = 0,
    .operands_max = 0,
    .run = RunMembers,
};

}  // namespace cairn::cli
