// SPDX-License-Identifier: Apache-2.0
// cairnctl: the command line for a running cairnd, for image files, and for evaluating recipes.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/text.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"

namespace cairn::cli {
namespace {

constexpr const Command* kCommands[] = {
    &kStatus, &kSpaces,  &kLs,       &kInspect,    &kGet,    &kPut,    &kPrefetch,
    &kPin,    &kRetain,  &kDemote,   &kExplain,    &kWhere,  &kDelete, &kVerify,
    &kPolicy, &kProfile, &kEvaluate, &kReplay,     &kEvents, &kTier,   &kMembers,
    &kDrain,  &kDoctor,  &kTop,      &kCompletion, &kVersion};

constexpr std::string_view kExitCodes =
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 no daemon answers,\n"
    "            5 damaged, or not an image, 6 out of time\n";

// Ends the help of each command.
constexpr std::string_view kSeeAlso =
    "\nAll commands take --control, --admin, --data, --timeout, --json and --progress:\n"
    "see 'cairnctl --help', also for exit codes.\n";

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
      return 2;
    case absl::StatusCode::kNotFound:
      return 3;
    case absl::StatusCode::kUnavailable:
      return 4;
    case absl::StatusCode::kDataLoss:
      return 5;
    case absl::StatusCode::kDeadlineExceeded:
      return 6;
    default:
      return 1;
  }
}

void PrintFlags(std::span<const Flag> flags) {
  for (const Flag& flag : flags) {
    const std::string left =
        absl::StrCat(ToAbsl(flag.name), flag.value.empty() ? "" : " ", ToAbsl(flag.value));
    absl::PrintF("  %-22s %s\n", left, ToAbsl(flag.help));
  }
}

void PrintUsage() {
  absl::PrintF(
      "usage: cairnctl COMMAND [FLAGS] …\n\n"
      "Examples:\n"
      "  cairnctl status\n"
      "  cairnctl top --control 10.0.0.7:50151\n"
      "  cairnctl pin --space default/qwen3-8b --tokens prompt.txt\n\n"
      "Commands:\n");
  for (const Command* command : kCommands) {
    absl::PrintF("  %-11s %s\n", ToAbsl(command->name), ToAbsl(command->summary));
  }
  absl::PrintF("\n'cairnctl COMMAND --help' shows examples and flags. Flags of all commands:\n");
  PrintFlags(CommonFlags());
  absl::PrintF("\n%s", ToAbsl(kExitCodes));
}

void PrintHelp(const Command& command) {
  absl::PrintF("usage: cairnctl %s%s%s [FLAGS]\n\n%s.\n", ToAbsl(command.name),
               command.operands.empty() ? "" : " ", ToAbsl(command.operands),
               ToAbsl(command.summary));
  if (!command.examples.empty()) {
    absl::PrintF("\nExamples:\n%s", ToAbsl(command.examples));
  }
  if (!command.details.empty()) {
    absl::PrintF("\n%s", ToAbsl(command.details));
  }
  if (command.run_words != nullptr) {
    return;
  }
  if (!command.flags.empty()) {
    absl::PrintF("\nFlags:\n");
    PrintFlags(command.flags);
  }
  absl::PrintF("%s", ToAbsl(kSeeAlso));
}

const Command* FindCommand(const std::string& name) {
  const auto found = std::find_if(std::begin(kCommands), std::end(kCommands),
                                  [&](const Command* c) { return c->name == name; });
  return found != std::end(kCommands) ? *found : nullptr;
}

// Returns the text of a failure, with a hint if there is one.
std::string Explain(const Command& command, const absl::Status& status) {
  const std::string text(status.message());
  if (text.starts_with("unknown flag")) {
    return absl::StrCat(text, "; 'cairnctl ", ToAbsl(command.name), " --help' lists them");
  }
  if (absl::StrContains(text, "connect an http1.x server")) {
    return "that is an HTTP port, perhaps the one of the daemon's --http; --control takes the one "
           "of "
           "gRPC, 50151 by default";
  }
  if (IsNobodyThere(status)) {
    return absl::StrCat(
        text, "\nIs cairnd running, and is this its address (--control, $CAIRN_CONTROL)?");
  }
  return text;
}

absl::Status RunCommand(const Command& command, std::span<const std::string> words) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(words, command.flags);
  if (!arguments.ok()) {
    return arguments.status();
  }
  if (arguments->Has("--help")) {
    PrintHelp(command);
    return absl::OkStatus();
  }
  const size_t count = arguments->positional().size();
  if (count < command.operands_min || count > command.operands_max) {
    return absl::InvalidArgumentError(absl::StrCat("usage: cairnctl ", ToAbsl(command.name), " ",
                                                   ToAbsl(command.operands), " [FLAGS]"));
  }
  return command.run(*arguments);
}

// If a command parses its own words, prints our help and then the command's own.
absl::Status RunWords(const Command& command, std::span<const std::string> words, bool is_help) {
  const std::vector<std::string> help{"--help"};
  if (!is_help &&
      (std::ranges::count(words, "--help") != 0 || std::ranges::count(words, "-h") != 0)) {
    PrintHelp(command);
  }
  return command.run_words(is_help ? help : words);
}

int Main(const std::vector<std::string>& words) {
  SetLogLevel(LogLevel::kError);  // the command reports a failure itself, once
  const bool is_help =
      !words.empty() && (words[0] == "help" || words[0] == "--help" || words[0] == "-h");
  if (words.empty() || (is_help && words.size() == 1)) {
    PrintUsage();
    return words.empty() ? 2 : 0;
  }
  const std::string name = is_help ? words[1] : words[0] == "--version" ? "version" : words[0];
  const Command* command = FindCommand(name);
  if (command == nullptr) {
    const bool is_flag = name.starts_with("-");
    std::vector<std::string_view> names;
    for (const Command* known : kCommands) names.push_back(known->name);
    absl::FPrintF(
        stderr, "cairnctl: %s '%s'%s; 'cairnctl --help' lists them\n",
        is_flag ? "flags come after the command: expected one instead of" : "unknown command", name,
        DidYouMean(name, names));
    return 2;
  }
  if (is_help) {
    PrintHelp(*command);
  }
  absl::Status status = absl::OkStatus();
  if (command->run_words != nullptr) {
    status = RunWords(*command, std::span(words).subspan(1), is_help);
  } else if (!is_help) {
    status = RunCommand(*command, std::span(words).subspan(1));
  }
  if (!status.ok()) {
    absl::FPrintF(stderr, "cairnctl %s: %s\n", name, Explain(*command, status));
  }
  return ExitCode(status);
}

}  // namespace

std::span<const Command* const> Commands() { return kCommands; }

}  // namespace cairn::cli

int main(int argc, char** argv) {
  try {
    return cairn::cli::Main(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cairnctl: %s\n", error.what());
    return 1;
  }
}
