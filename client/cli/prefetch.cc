// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

constexpr Flag kPrefetchFlags[] = {
    kSpaceFlag,
};

absl::Status RunPrefetch(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, ParseKeys(arguments.positional()));
  CAIRN_ASSIGN_OR_RETURN(const OpenedSpace opened, OpenChosen(arguments));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  CAIRN_ASSIGN_OR_RETURN(const PrefetchResult result,
                         opened.space->Prefetch({.keys = keys, .timeout = timeout}));
  if (arguments.is_json()) {
    JsonWriter()
        .BeginObject()
        .Field("space_id", opened.info.space_id())
        .Field("in_memory", result.in_memory_count)
        .Field("on_their_way", result.on_their_way_count)
        .Field("absent", result.absent_count)
        .Field("refused", result.refused_count)
        .EndObject()
        .Print();
  } else {
    absl::PrintF("%d in memory, %d on their way, %d not there, %d refused\n",
                 result.in_memory_count, result.on_their_way_count, result.absent_count,
                 result.refused_count);
  }
  return absl::OkStatus();
}

}  // namespace

const Command kPrefetch{
    .name = "prefetch",
    .operands = "KEY …",
    .summary = "Reads blocks from a drive into the daemon's memory",
    .examples = "  cairnctl prefetch 3f9c…e1 77ab…04\n",
    .details = "Returns at once. Blocks for which memory has no room stay on the drive.\n",
    .flags = kPrefetchFlags,
    .operands_min = 1,
    .operands_max = 65536,
    .run = RunPrefetch,
};

}  // namespace cairn::cli
