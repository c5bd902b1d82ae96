// SPDX-License-Identifier: Apache-2.0
// cairnctl retain and cairnctl demote: hints on how long a prefix is worth keeping.
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"
#include "client/cli/prefix.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kHintSecondsMax = 604'800;

constexpr Flag kRetainFlags[] = {
    kSpaceFlag,
    kTokensFlag,
    {"--for", "SECONDS", "how long the hint lasts, 1 to 604800 [3600]"},
    {"--priority", "NUMBER", "1 to 5; blocks of a higher priority are evicted later [1]"},
};
constexpr Flag kDemoteFlags[] = {
    kSpaceFlag,
    kTokensFlag,
    {"--after", "SECONDS", "demote them after this time, unless they are used, 0 to 604800 [0]"},
};

void Print(const Arguments& arguments, const OpenedSpace& opened, size_t blocks, uint32_t stored) {
  if (arguments.is_json()) {
    JsonWriter()
        .BeginObject()
        .Field("space_id", opened.info.space_id())
        .Field("blocks", uint64_t{blocks})
        .Field("stored", stored)
        .EndObject()
        .Print();
  } else {
    absl::PrintF("%d blocks have the hint, %d of them are stored now\n", blocks, stored);
  }
}

absl::Status Retain(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t seconds,
                         arguments.GetNumber("--for", 3600, kHintSecondsMax));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t priority,
                         arguments.GetNumber("--priority", 1, kRetainPriorityMax));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  CAIRN_ASSIGN_OR_RETURN(const OpenedSpace opened, OpenChosen(arguments));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, PrefixOf(arguments, *opened.space));
  CAIRN_ASSIGN_OR_RETURN(
      const uint32_t stored,
      opened.space->Retain(keys, absl::Seconds(seconds), static_cast<uint32_t>(priority), timeout));
  Print(arguments, opened, keys.size(), stored);
  return absl::OkStatus();
}

absl::Status Demote(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t seconds,
                         arguments.GetNumber("--after", 0, kHintSecondsMax));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  CAIRN_ASSIGN_OR_RETURN(const OpenedSpace opened, OpenChosen(arguments));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, PrefixOf(arguments, *opened.space));
  CAIRN_ASSIGN_OR_RETURN(const uint32_t stored,
                         opened.space->Demote(keys, absl::Seconds(seconds), timeout));
  Print(arguments, opened, keys.size(), stored);
  return absl::OkStatus();
}

}  // namespace

const Command kRetain{
    .name = "retain",
    .operands = "[KEY …]",
    .summary = "Has a prefix evicted later than others",
    .examples = "  cairnctl retain --tokens prompt.txt --for 86400 --priority 3\n",
    .details =
        "Within each tier, blocks of a higher priority are evicted after all blocks of a lower\n"
        "one. Nothing is pinned: see 'cairnctl pin'. Blocks may be named before they are put.\n"
        "With an SSD tier, the hint survives a restart of the daemon. docs/guides/memory.md\n"
        "compares hints, leases and pins.\n",
    .flags = kRetainFlags,
    .operands_min = 0,
    .operands_max = kPrefixKeysMax,
    .run = Retain,
};

const Command kDemote{
    .name = "demote",
    .operands = "[KEY …]",
    .summary = "Has a prefix evicted before others",
    .examples = "  cairnctl demote --tokens session.txt --after 600\n",
    .details =
        "A use of a block ends its demotion. A block that others follow is evicted after them,\n"
        "as always.\n",
    .flags = kDemoteFlags,
    .operands_min = 0,
    .operands_max = kPrefixKeysMax,
    .run = Demote,
};

}  // namespace cairn::cli
