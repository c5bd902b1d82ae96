// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "base/units.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

constexpr Flag kProfileFlags[] = {
    kSpaceFlag,
    {"--group", "INDEX", "for install: the group of layers that it belongs to [0]"},
};

std::string IdHex(const Digest& id) { return proto::Hex(std::as_bytes(std::span(id))); }

std::string OriginOf(const SideObjectFigures& one) { return one.is_mined ? "mined" : "installed"; }

absl::Status Install(const Arguments& arguments, Space& space, absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t group,
                         arguments.GetNumber("--group", 0, proto::kGroupsMax - 1));
  CAIRN_ASSIGN_OR_RETURN(const std::string bytes,
                         ReadFile(arguments.positional()[1], proto::kSideObjectBytesMax));
  const auto content = std::as_bytes(std::span(bytes.data(), bytes.size()));
  // For other content, the daemon reports the error.
  const SideObjectKind kind = proto::KindOf(content).value_or(SideObjectKind::kProfile);
  CAIRN_ASSIGN_OR_RETURN(const InstalledSideObject installed,
                         space.PutSideObject(static_cast<uint32_t>(group), kind, content, timeout));
  if (arguments.is_json()) {
    JsonWriter()
        .BeginObject()
        .Field("id", IdHex(installed.id))
        .Field("kind", proto::Name(kind))
        .Field("group", group)
        .Field("created", installed.was_created)
        .EndObject()
        .Print();
  } else {
    absl::PrintF("%s: group %d is coded with it from now on%s\n", IdHex(installed.id), group,
                 installed.was_created ? "" : ", it was there already");
  }
  return absl::OkStatus();
}

absl::Status Show(const Arguments& arguments, Space& space, absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<SideObjectFigures> listed,
                         space.ListSideObjects(timeout));
  if (arguments.is_json()) {
    JsonWriter json;
    json.BeginObject().Field("recipe", space.recipe()).Key("side_objects").BeginArray();
    for (const SideObjectFigures& one : listed) {
      json.BeginObject()
          .Field("id", IdHex(one.id))
          .Field("kind", proto::Name(one.kind))
          .Field("bytes", one.bytes)
          .Field("current_groups", absl::StrJoin(one.current_groups, ","))
          .Field("references", one.references)
          .Field("origin", OriginOf(one))
          .EndObject();
    }
    json.EndArray().EndObject().Print();
    return absl::OkStatus();
  }
  absl::PrintF("recipe  %s\n", space.recipe());
  std::vector<std::vector<std::string>> rows;
  for (const SideObjectFigures& one : listed) {
    rows.push_back({IdHex(one.id), proto::Name(one.kind), FormatBytes(one.bytes),
                    one.current_groups.empty() ? "-" : absl::StrJoin(one.current_groups, ","),
                    absl::StrCat(one.references), OriginOf(one)});
  }
  PrintTable({"ID", "KIND", "BYTES", "CURRENT OF GROUPS", "REFERENCES", "ORIGIN"}, rows);
  return absl::OkStatus();
}

absl::Status RunProfile(const Arguments& arguments) {
  const std::vector<std::string>& words = arguments.positional();
  const bool is_install = words[0] == "install";
  if ((!is_install && words[0] != "show") || words.size() != (is_install ? 2 : 1)) {
    return absl::InvalidArgumentError("usage: cairnctl profile install FILE | show");
  }
  CAIRN_ASSIGN_OR_RETURN(const OpenedSpace opened, OpenChosen(arguments));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  return is_install ? Install(arguments, *opened.space, timeout)
                    : Show(arguments, *opened.space, timeout);
}

}  // namespace

const Command kProfile{
    .name = "profile",
    .operands = "install FILE|show",
    .summary = "Installs or shows the profile of cairn:2.3 or the bank of patternkv:2",
    .examples =
        "  cairnctl profile show --space default/qwen3-8b\n"
        "  cairnctl profile install qwen3.profile --group 0\n",
    .details =
        "FILE is a profile or a bank, made by cairn.profile or cairn.bank of the Python\n"
        "package; its first bytes say which. Without an installed profile the daemon mines\n"
        "one from the space's own blocks, which an installed one replaces. Stored blocks keep\n"
        "the one that they were encoded with; a profile that no block uses any more is\n"
        "dropped.\n",
    .flags = kProfileFlags,
    .operands_min = 1,
    .operands_max = 2,
    .run = RunProfile,
};

}  // namespace cairn::cli
