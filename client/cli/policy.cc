// SPDX-License-Identifier: Apache-2.0
#include "service/policy/policy.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"
#include "proto/convert.h"

namespace cairn::cli {
namespace {

constexpr Flag kPolicyFlags[] = {
    kSpaceFlag,
    {"--recipe", "NAME", "recipe for later puts"},
    {"--cold-recipe", "NAME", "recipe of copies in the SSD tier; off: not recoded"},
    {"--ttl", "SECONDS", "blocks expire this long after they were first put; 0: never"},
};

// `policy check FILE` checks a file for the daemon's --policy.
absl::Status CheckFile(const Arguments& arguments, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kPolicyBytesMax));
  CAIRN_ASSIGN_OR_RETURN(const Policy checked, Policy::Parse(text, path));
  std::vector<std::string> doors;
  for (const Policy::Door& door : checked.doors()) doors.push_back(door.folder);
  if (arguments.is_json()) {
    JsonWriter json;
    json.BeginObject()
        .Field("rules", uint64_t{checked.rule_count()})
        .Field("denied", uint64_t{checked.deny_count()})
        .Field("many_tenants", checked.has_many_tenants())
        .Key("doors")
        .BeginArray();
    for (const std::string& door : doors) json.String(door);
    json.EndArray().EndObject().Print();
    return absl::OkStatus();
  }
  absl::PrintF("%s is valid: %d rules, %d denied%s\n", path, checked.rule_count(),
               checked.deny_count(),
               checked.has_many_tenants() ? "; several tenants: no --map on" : "");
  if (!doors.empty()) {
    absl::PrintF("the daemon must have --door: %s\n", absl::StrJoin(doors, ", "));
  }
  return absl::OkStatus();
}

absl::Status RunPolicy(const Arguments& arguments) {
  if (const std::vector<std::string>& words = arguments.positional(); !words.empty()) {
    if (words.size() == 2 && words[0] == "check") return CheckFile(arguments, words[1]);
    return absl::InvalidArgumentError(
        "usage: cairnctl policy [FLAGS], or cairnctl policy check FILE");
  }
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::SpaceInfo info, ChooseSpace(arguments, *admin));
  v1::SpacePolicy policy = info.policy();
  if (arguments.Has("--recipe")) policy.set_recipe(arguments.Get("--recipe"));
  if (arguments.Has("--cold-recipe")) {
    const std::string cold = arguments.Get("--cold-recipe");
    policy.set_cold_recipe(cold == "off" ? "" : cold);
  }
  for (const std::string& recipe : {policy.recipe(), policy.cold_recipe()}) {
    CAIRN_RETURN_IF_ERROR(proto::FromRecipeName(recipe, codecs::Recipe()).status());
  }
  CAIRN_ASSIGN_OR_RETURN(const uint64_t ttl,
                         arguments.GetNumber("--ttl", policy.ttl_seconds(), UINT32_MAX));
  policy.set_ttl_seconds(static_cast<uint32_t>(ttl));
  if (arguments.Has("--recipe") || arguments.Has("--cold-recipe") || arguments.Has("--ttl")) {
    v1::SetPolicyRequest request;
    request.set_space_id(info.space_id());
    *request.mutable_policy() = policy;
    CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
    CAIRN_ASSIGN_OR_RETURN(const v1::SetPolicyReply reply, admin->SetPolicy(request, deadline));
    policy = reply.policy();
  }
  if (arguments.is_json()) {
    JsonWriter()
        .BeginObject()
        .Field("space_id", info.space_id())
        .Field("recipe", policy.recipe())
        .Field("cold_recipe", policy.cold_recipe())
        .Field("ttl_seconds", uint64_t{policy.ttl_seconds()})
        .EndObject()
        .Print();
    return absl::OkStatus();
  }
  absl::PrintF("recipe %s, cold recipe %s, ttl %s\n", policy.recipe(),
               policy.cold_recipe().empty() ? "off" : policy.cold_recipe(),
               policy.ttl_seconds() == 0 ? "off" : absl::StrCat(policy.ttl_seconds(), " s"));
  return absl::OkStatus();
}

}  // namespace

const Command kPolicy{
    .name = "policy",
    .operands = "[check FILE]",
    .summary = "Shows or sets the policy for the blocks of a space, or checks a policy file",
    .examples =
        "  cairnctl policy --space default/qwen3-8b\n"
        "  cairnctl policy --space default/qwen3-8b --recipe kivi:8 --cold-recipe kivi:4\n"
        "  cairnctl policy --space default/qwen3-8b --ttl 86400\n"
        "  cairnctl policy check /etc/cairn/policy.yaml\n",
    .details =
        "Settings that are not named stay. Stored blocks keep their bytes and their expiry;\n"
        "copies that are written to the SSD tier later get the cold recipe. The conversion to\n"
        "a cold recipe must be exact: fewer bits of kivi, ott, logquant and patternkv,\n"
        "longer steps of cairn (cairn:4.3 to cairn:4.3*3), or raw to exact. A space with a\n"
        "lossless recipe cannot have a lossy cold recipe.\n\n"
        "In a cluster, the policy is set for all members. If some do not confirm it, the\n"
        "command fails and names them; they are told when they are back.\n\n"
        "'check FILE' checks a file for the daemon's --policy, which names the peers that may\n"
        "use each tenant. It asks no daemon.\n",
    .flags = kPolicyFlags,
    .operands_min = 0,
    .operands_max = 2,
    .run = RunPolicy,
};

}  // namespace cairn::cli
