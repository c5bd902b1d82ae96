// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/cli/command.h"

namespace cairn::cli {
namespace {

std::string JoinedNames(std::span<const Flag> flags) {
  return absl::StrJoin(flags, " ", [](std::string* text, const Flag& flag) {
    absl::StrAppend(text, ToAbsl(flag.name));
  });
}

absl::Status RunCompletion(const Arguments&) {
  const std::string commands =
      absl::StrJoin(Commands(), " ", [](std::string* text, const Command* command) {
        absl::StrAppend(text, ToAbsl(command->name));
      });
  std::string cases;
  for (const Command* command : Commands()) {
    if (!command->flags.empty()) {
      absl::StrAppend(&cases, "    ", ToAbsl(command->name), ") words+=' ",
                      JoinedNames(command->flags), "' ;;\n");
    }
  }
  absl::PrintF(
      "_cairnctl() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} words='%s'\n"
      "  (( COMP_CWORD == 1 )) && words='help %s'\n"
      "  (( COMP_CWORD > 1 )) && case ${COMP_WORDS[1]} in\n%s"
      "    help) words='%s' ;;\n"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "}\n"
      "complete -o default -F _cairnctl cairnctl\n",
      JoinedNames(CommonFlags()), commands, cases, commands);
  return absl::OkStatus();
}

}  // namespace

const Command kCompletion{
    .name = "completion",
    .operands = "",
    .summary = "Prints a script that completes commands and flags in bash",
    .details = "In a shell: source <(cairnctl completion). The Debian package installs it.\n",
    .flags = {},
    .operands_min = 0,
    .operands_max = 0,
    .run = RunCompletion,
};

}  // namespace cairn::cli
