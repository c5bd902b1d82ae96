// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

constexpr Flag kDeleteFlags[] = {
    kSpaceFlag,
    {"--all", "", "every block of the space, instead of KEYs; needs --space"},
};

absl::Status RunDelete(const Arguments& arguments) {
  const bool is_all = arguments.Has("--all");
  if (is_all == !arguments.positional().empty()) {
    return absl::InvalidArgumentError("name KEYs, or --all, and not both");
  }
  if (is_all && !arguments.Has("--space")) {
    return absl::InvalidArgumentError("--all needs a --space, even if there is only one");
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, ParseKeys(arguments.positional()));
  CAIRN_ASSIGN_OR_RETURN(const OpenedSpace opened, OpenChosen(arguments));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  CAIRN_ASSIGN_OR_RETURN(const uint64_t deleted, is_all ? opened.space->Invalidate(timeout)
                                                        : opened.space->Delete(keys, timeout));
  if (arguments.is_json()) {
    JsonWriter()
        .BeginObject()
        .Field("space_id", opened.info.space_id())
        .Field("deleted", deleted)
        .EndObject()
        .Print();
  } else {
    absl::PrintF("%d blocks deleted\n", deleted);
  }
  if (!is_all && deleted < keys.size()) {
    return absl::NotFoundError(
        absl::StrCat(keys.size() - deleted, " of ", keys.size(), " keys were not there"));
  }
  return absl::OkStatus();
}

}  // namespace

const Command kDelete{
    .name = "delete",
    .operands = "[KEY …]",
    .summary = "Deletes blocks, or all blocks of a space",
    .examples =
        "  cairnctl delete 3f9c…e1 --space default/qwen3-8b\n"
        "  cairnctl delete --all --space default/qwen3-8b\n",
    .details = "Their bytes are freed when the last reader has finished.\n",
    .flags = kDeleteFlags,
    .operands_min = 0,
    .operands_max = 65536,
    .run = RunDelete,
};

}  // namespace cairn::cli
