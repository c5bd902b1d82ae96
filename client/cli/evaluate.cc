// SPDX-License-Identifier: Apache-2.0
// Runs the Python module cairn.evaluate as a command of cairnctl.
#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/python.h"

namespace cairn::cli {
namespace {

struct Words {
  std::string python;
  std::vector<std::string> rest;
};

absl::StatusOr<Words> TakePython(std::span<const std::string> words) {
  Words taken{DefaultPython(), {}};
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == kPythonFlag) {
      if (++i == words.size()) {
        return absl::InvalidArgumentError("--python needs PATH");
      }
      taken.python = words[i];
    } else if (words[i].starts_with(absl::StrCat(ToAbsl(kPythonFlag), "="))) {
      taken.python = words[i].substr(kPythonFlag.size() + 1);
    } else {
      taken.rest.push_back(words[i]);
    }
  }
  return taken;
}

// A short form of the module's own help, for when it cannot run.
constexpr char kHelp[] =
    "  DUMP                   folder with K and V of your model, safetensors or npy\n"
    "  --out FOLDER           folder for evaluate.json and the page evaluate.html [.]\n"
    "  --all                  try every recipe, not the usual eight\n"
    "  --judge FILE.py:NAME   runs your model on coded KV: gives KL and perplexity\n"
    "  --loss FIGURE=MOST     largest loss of the recommended recipe, as in kl=0.01\n"
    "  --calibration DUMP     KV of another text, to make profiles from\n"
    "  --profile-out FOLDER   folder for the profile of the recommended recipe\n"
    "  --install HOST:PORT    installs that profile in a cairnd\n"
    "\ndocs/guides/evaluate.md explains how to begin. The module is not ready to run: ";

bool AsksForHelp(std::span<const std::string> words) {
  return std::ranges::any_of(
      words, [](std::string_view word) { return word == "-h" || word == "--help"; });
}

absl::Status RunEvaluate(std::span<const std::string> words) {
  CAIRN_ASSIGN_OR_RETURN(const Words given, TakePython(words));
  const absl::Status ready = CheckPython(given.python);
  if (!ready.ok() && AsksForHelp(given.rest)) {
    absl::PrintF("%s%s\n", kHelp, ready.message());
    return absl::OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(ready);
  setenv("CAIRN_PROGRAM", "cairnctl evaluate", 1);
  return BecomeModule(given.python, "cairn.evaluate", given.rest);
}

}  // namespace

const Command kEvaluate{
    .name = "evaluate",
    .operands = "DUMP",
    .summary = "Measures what each recipe costs and saves, on KV of your own model",
    .examples = "  cairnctl evaluate dump/ --out report/\n",
    .details =
        "--python PATH names the interpreter [$CAIRN_PYTHON, else python3]. All other words\n"
        "go to the module cairn.evaluate of the package kvcairn:\n",
    .flags = {},
    .operands_min = 0,
    .operands_max = 0,
    .run = nullptr,
    .run_words = RunEvaluate,
};

}  // namespace cairn::cli
