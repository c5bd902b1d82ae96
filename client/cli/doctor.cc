// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/machine.h"
#include "client/cli/output.h"
#include "transport/local/socket.h"

namespace cairn::cli {
namespace {

std::string_view Name(Verdict verdict) {
  constexpr std::string_view kNames[] = {"ok", "warn", "FAIL", "--"};
  return kNames[static_cast<size_t>(verdict)];
}

// Returns whether the user gave the address of a daemon.
bool IsNamed(const Arguments& arguments) {
  return arguments.Has("--control") || std::getenv("CAIRN_CONTROL") != nullptr;
}

Finding CheckVersions(const Arguments& arguments, const absl::StatusOr<DaemonAbout>& about) {
  constexpr std::string_view kOurs = CAIRN_VERSION_TEXT;
  const std::string at = absl::StrCat(" at ", arguments.control());
  if (IsNobodyThere(about.status()) && !IsNamed(arguments)) {
    return {"daemon", Verdict::kOk, absl::StrCat("none answers", at, "; none was named"), ""};
  }
  if (absl::IsUnavailable(about.status()) && !IsNobodyThere(about.status())) {
    return {"daemon", Verdict::kWarn, absl::StrCat("cairnd", at, ": ", about.status().message()),
            "ask again once it has started"};
  }
  if (!about.ok()) {
    return {"daemon", Verdict::kFail,
            absl::StrCat("none answers", at, ": ", about.status().message()),
            "is cairnd running, and is this its address (--control, $CAIRN_CONTROL)?"};
  }
  const std::string found =
      absl::StrCat("cairnd ", about->version, at, ", cairnctl ", ToAbsl(kOurs));
  return about->version == kOurs
             ? Finding{"daemon", Verdict::kOk, found, ""}
             : Finding{"daemon", Verdict::kWarn, found, "upgrade the older of the two"};
}

// Checks what the daemon says of its cluster, if it belongs to one.
void CheckMembers(const v1::ListMembersReply& reply, std::vector<Finding>* findings) {
  if (reply.cluster().empty()) return;
  int joined = 0;
  bool is_listed = false;
  for (const v1::MemberInfo& member : reply.members()) {
    joined += member.state() == v1::MEMBER_STATE_JOINED ? 1 : 0;
    is_listed = is_listed || member.self();
    if (member.state() == v1::MEMBER_STATE_REFUSED) {
      findings->push_back({absl::StrCat("member ", member.name()), Verdict::kFail,
                           absl::StrCat("refused: ", member.reason()),
                           "docs/install/members.md says what members must have in common"});
    } else if (member.state() == v1::MEMBER_STATE_UNMET) {
      findings->push_back({absl::StrCat("member ", member.name()), Verdict::kWarn,
                           absl::StrCat("does not answer at ", member.address(),
                                        member.reason().empty() ? "" : ": ", member.reason()),
                           "does it run, and is its peer port open to this host?"});
    }
  }
  const bool is_all = joined == reply.members_size();
  findings->push_back({"members", is_all ? Verdict::kOk : Verdict::kWarn,
                       absl::StrCat(joined, " of ", reply.members_size(), " of cluster ",
                                    reply.cluster(), " have joined, source ", reply.source()),
                       ""});
  if (!is_listed) {
    findings->push_back({"members", Verdict::kFail, "the source does not list this daemon",
                         "others cannot read its blocks; is its --member-name the listed one?"});
  }
  if (!reply.source_error().empty()) {
    findings->push_back({"members", Verdict::kWarn,
                         absl::StrCat("the source cannot be read: ", reply.source_error()),
                         "the members known stay until it can"});
  }
  if (reply.guarded()) {
    findings->push_back({"members", Verdict::kWarn,
                         "the source lacks more than a third of the members",
                         "if they are gone for good, the daemon takes its word in ten minutes"});
  }
}

// Checks the devices and the members that the daemon reports, if this user may ask.
void CheckDaemon(const Arguments& arguments, absl::Time deadline, std::vector<Finding>* findings) {
  const auto admin = OpenAdmin(arguments);
  const absl::StatusOr<v1::ListTiersReply> tiers =
      admin.ok() ? (*admin)->ListTiers(deadline) : admin.status();
  if (!tiers.ok()) {
    findings->push_back({"operators", Verdict::kWarn, std::string(tiers.status().message()),
                         "run it as another user, or on the daemon's host, to check its devices "
                         "and its cluster, too"});
    return;
  }
  for (const v1::TierInfo& tier : tiers->tiers()) {
    for (const v1::DeviceInfo& device : tier.devices()) {
      const bool is_ok = device.state() == v1::DEVICE_STATE_OK;
      findings->push_back(
          {absl::StrCat("device ", device.path()), is_ok ? Verdict::kOk : Verdict::kFail,
           absl::StrCat(ToAbsl(DeviceStateName(device.state())), ", ", device.engine(),
                        device.reason().empty() ? "" : ": ", device.reason()),
           is_ok ? "" : "docs/guides/ssd.md explains the states"});
    }
  }
  if (const auto members = (*admin)->ListMembers(deadline); members.ok()) {
    CheckMembers(*members, findings);
  }
}

// Checks which users can replace the daemon's sockets.
void CheckSockets(const Arguments& arguments, const DaemonAbout& about,
                  std::vector<Finding>* findings) {
  for (absl::string_view path :
       {absl::string_view(arguments.control()), absl::string_view(about.admin_address)}) {
    struct stat file {};
    if (!absl::ConsumePrefix(&path, "unix:") || ::stat(std::string(path).c_str(), &file) != 0) {
      continue;  // a TCP address, or a socket of another host or container
    }
    const transport::FolderRisk risk = transport::FolderRiskOf(std::string(path), file.st_uid);
    const Verdict bad = risk.is_refused ? Verdict::kFail : Verdict::kWarn;
    findings->push_back({absl::StrCat("socket ", path), risk.text.empty() ? Verdict::kOk : bad,
                         risk.text.empty() ? "no other user can replace it" : risk.text, ""});
  }
}

std::string_view JsonName(Verdict verdict) {
  constexpr std::string_view kNames[] = {"ok", "warn", "fail", "absent"};
  return kNames[static_cast<size_t>(verdict)];
}

void PrintJson(const std::vector<Finding>& findings) {
  JsonWriter json;
  json.BeginArray();
  for (const Finding& finding : findings) {
    json.BeginObject()
        .Field("check", finding.check)
        .Field("verdict", JsonName(finding.verdict))
        .Field("found", finding.found)
        .Field("advice", finding.advice)
        .EndObject();
  }
  json.EndArray().Print();
}

absl::Status RunDoctor(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  std::vector<Finding> findings = CheckMachine();
  for (const std::string& folder : arguments.positional()) {
    findings.push_back(CheckSsdFolder(folder));
  }
  const absl::StatusOr<DaemonAbout> about =
      AskAbout(arguments.control(), deadline, arguments.tls());
  findings.push_back(CheckVersions(arguments, about));
  if (about.ok() && !about->local_gets.empty()) {
    findings.push_back({"gets of its host", Verdict::kOk, about->local_gets, ""});
  }
  if (about.ok()) {
    CheckSockets(arguments, *about, &findings);
    CheckDaemon(arguments, deadline, &findings);
  }
  if (arguments.is_json()) {
    PrintJson(findings);
  } else {
    for (const Finding& finding : findings) {
      absl::PrintF("%-4s  %-14s  %s\n", ToAbsl(Name(finding.verdict)), finding.check,
                   finding.found);
      if (!finding.advice.empty()) absl::PrintF("%22s%s\n", "", finding.advice);
    }
  }
  const auto failed = std::ranges::count(findings, Verdict::kFail, &Finding::verdict);
  return failed == 0 ? absl::OkStatus()
                     : absl::FailedPreconditionError(
                           absl::StrCat(failed, " of ", findings.size(), " checks failed"));
}

}  // namespace

const Command kDoctor{
    .name = "doctor",
    .operands = "[FOLDER …]",
    .summary = "Checks whether this machine or container can run a daemon",
    .examples = "  cairnctl doctor /mnt/nvme0/cairn\n",
    .details =
        "Each line shows a finding and, if there is a problem, what to change. Run it as the\n"
        "daemon's user, in the daemon's container. FOLDERs are those of cairnd's --ssd. If a\n"
        "daemon answers, its version, its devices, the members of its cluster and its sockets\n"
        "are checked, too: whether other users could replace them. Warnings do not change the\n"
        "exit code.\n",
    .flags = {},
    .operands_min = 0,
    .operands_max = 16,
    .run = RunDoctor,
};

}  // namespace cairn::cli
