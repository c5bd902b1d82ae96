// SPDX-License-Identifier: Apache-2.0
// cairnctl where: which member of the cluster has how much of a prefix.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"
#include "client/cli/prefix.h"

namespace cairn::cli {
namespace {

constexpr Flag kWhereFlags[] = {
    kSpaceFlag,
    kTokensFlag,
};

void PrintJson(const OpenedSpace& opened, size_t blocks, const WhereResult& result) {
  JsonWriter json;
  json.BeginObject()
      .Field("space_id", opened.info.space_id())
      .Field("asked_blocks", uint64_t{blocks})
      .Field("unasked_members", result.unasked_count)
      .Key("members")
      .BeginArray();
  for (const MemberBlocks& member : result.members) {
    json.BeginObject()
        .Field("member", member.member)
        .Field("self", member.is_self)
        .Field("draining", member.is_draining)
        .Field("failure", member.failure)
        .Field("blocks", member.block_count)
        .Key("tiers")
        .BeginObject();
    for (const TierBlocks& tier : member.tiers) {
      json.Field(TierName(static_cast<v1::Tier>(tier.tier)), tier.block_count);
    }
    json.EndObject().EndObject();
  }
  json.EndArray().EndObject().Print();
}

std::string Remark(const MemberBlocks& member) {
  if (!member.failure.empty()) return member.failure;
  if (member.is_draining) return "draining";
  return member.is_self ? "this daemon" : "";
}

void PrintMembers(size_t blocks, uint32_t tokens_per_block, const WhereResult& result) {
  std::vector<std::vector<std::string>> rows;
  for (const MemberBlocks& member : result.members) {
    const bool is_known = member.failure.empty();
    const std::string tiers =
        absl::StrJoin(member.tiers, " ", [](std::string* out, const TierBlocks& tier) {
          absl::StrAppend(out, ToAbsl(TierName(static_cast<v1::Tier>(tier.tier))), ":",
                          tier.block_count);
        });
    rows.push_back({member.member.empty() ? "-" : member.member,
                    is_known ? absl::StrCat(member.block_count) : "?",
                    is_known ? absl::StrCat(uint64_t{member.block_count} * tokens_per_block) : "?",
                    tiers.empty() ? "-" : tiers, Remark(member)});
  }
  PrintTable({"MEMBER", "BLOCKS", "TOKENS", "TIERS", ""}, rows);
  absl::PrintF("\nof %d blocks of the prefix\n", blocks);
  if (result.unasked_count > 0) {
    absl::PrintF("%d other members were not asked\n", result.unasked_count);
  }
}

absl::Status RunWhere(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  CAIRN_ASSIGN_OR_RETURN(const OpenedSpace opened, OpenChosen(arguments));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, PrefixOf(arguments, *opened.space));
  CAIRN_ASSIGN_OR_RETURN(const WhereResult result, opened.space->Where(keys, timeout));
  if (arguments.is_json()) {
    PrintJson(opened, keys.size(), result);
  } else {
    PrintMembers(keys.size(), opened.space->identity().tokens_per_block, result);
  }
  return absl::OkStatus();
}

}  // namespace

const Command kWhere{
    .name = "where",
    .operands = "[KEY …]",
    .summary = "Shows which member of the cluster has how much of a prefix",
    .examples =
        "  cairnctl where --tokens prompt.txt\n"
        "  cairnctl where --space default/qwen3-8b --tokens prompt.txt --json\n",
    .details =
        "Each member is asked, and says what it has itself, from the first block on. Nothing is\n"
        "fetched or leased. A member that does not answer is shown with the reason. In a cluster\n"
        "of more than five members, the command asks the 16 that the cluster's hints name for the\n"
        "deepest blocks. A daemon without a cluster answers for itself.\n",
    .flags = kWhereFlags,
    .operands_min = 0,
    .operands_max = kPrefixKeysMax,
    .run = RunWhere,
};

}  // namespace cairn::cli
