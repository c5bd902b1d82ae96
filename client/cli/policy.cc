// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

constexpr Flag kFlags[] = {
    kSpaceFlag,
    {"--recipe", "NAME", "of blocks that are put from now on"},
    {"--cold-recipe", "NAME", "of their copies in the SSD tier; off: as they are"},
    {"--ttl", "SECONDS", "since a block is first put: then it is gone; 0: never"},
};

absl::Status Run(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::SpaceInfo info, ChooseSpace(arguments, *admin));
  v1::SpacePolicy policy = info.policy();
  if (arguments.Has("--recipe")) policy.set_recipe(arguments.Get("--recipe"));
  if (arguments.Has("--cold-recipe")) {
    const std::string cold = arguments.Get("--cold-recipe");
    policy.set_cold_recipe(cold == "off" ? "" : cold);
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
    .operands = "",
    .summary = "Shows or sets what is done with the blocks of a space",
    .details =
        "What is not named stays. Blocks that are there stay as they are, and keep their time;\n"
        "copies that are written to the SSD tier from now on get the cold recipe. From a recipe\n"
        "to a cold one there has to be an exact way: fewer bits of kivi, ott, logquant and\n"
        "patternkv, a higher level of cairn (cairn:4.3 to cairn:4.3*3), or raw to exact. A space\n"
        "that loses nothing takes no cold recipe that does.\n\n",
    .flags = kFlags,
    .operands_min = 0,
    .operands_max = 0,
    .run = Run,
};

}  // namespace cairn::cli
