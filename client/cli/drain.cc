// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"

namespace cairn::cli {
namespace {

absl::Status RunDrain(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::DrainReply reply, admin->Drain(deadline));
  absl::PrintF("draining: %d sessions\n", reply.session_count());
  return absl::OkStatus();
}

}  // namespace

const Command kDrain{
    .name = "drain",
    .operands = "",
    .summary = "Makes the daemon refuse new sessions and puts",
    .examples = "  cairnctl drain\n",
    .details =
        "/readyz answers 503; gets continue. Draining cannot be undone: end the daemon with\n"
        "SIGTERM.\n",
    .flags = {},
    .operands_min = 0,
    .operands_max = 0,
    .run = RunDrain,
};

}  // namespace cairn::cli
