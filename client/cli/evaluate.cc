// SPDX-License-Identifier: Apache-2.0
// Runs the Python module cairn.evaluate as a command of cairnctl.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "client/cli/command.h"

namespace cairn::cli {
namespace {

constexpr std::string_view kPython = "--python";
constexpr int kNoPackage = 3;
constexpr int kNoNumpy = 4;
// Finds the packages without loading them, to tell a missing package from a failing one.
constexpr char kProbe[] =
    "import sys, importlib.util as u\n"
    "sys.exit(3 if u.find_spec('cairn') is None else 4 if u.find_spec('numpy') is None else 0)";

struct Words {
  std::string python;
  std::vector<std::string> rest;
};

absl::StatusOr<Words> TakePython(std::span<const std::string> words) {
  const char* environment = std::getenv("CAIRN_PYTHON");
  Words taken{environment != nullptr ? environment : "python3", {}};
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == kPython) {
      if (++i == words.size()) {
        return absl::InvalidArgumentError("--python needs PATH");
      }
      taken.python = words[i];
    } else if (words[i].starts_with(absl::StrCat(ToAbsl(kPython), "="))) {
      taken.python = words[i].substr(kPython.size() + 1);
    } else {
      taken.rest.push_back(words[i]);
    }
  }
  return taken;
}

// For exec: pointers into `words`, which must outlive them.
std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) {
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

absl::Status CannotRun(const std::string& python, int error) {
  return absl::FailedPreconditionError(absl::StrCat("cannot run ", python, ": ",
                                                    std::strerror(error),
                                                    "; name a Python 3.10 or later with --python"));
}

// Returns OK if `python` runs and has the packages.
absl::Status Probe(const std::string& python) {
  std::vector<std::string> words{python, "-c", kProbe};
  pid_t child = 0;
  if (const int error =
          posix_spawnp(&child, python.c_str(), nullptr, nullptr, Pointers(words).data(), environ);
      error != 0) {
    return CannotRun(python, error);
  }
  int ended = 0;
  while (waitpid(child, &ended, 0) < 0) {
    if (errno != EINTR) {
      return CannotRun(python, errno);
    }
  }
  const int code = WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  if (code == kNoPackage || code == kNoNumpy) {
    const bool is_ours = code == kNoPackage;
    return absl::FailedPreconditionError(absl::StrCat(
        python, " has no package ", is_ours ? "cairn; 'make wheel' builds it, then" : "numpy:",
        "\n  ", python, " -m pip install ", is_ours ? "build/wheel/kvcairn-*.whl " : "", "numpy",
        "\nor name a Python that has both with --python or $CAIRN_PYTHON"));
  }
  return code == 0 ? absl::OkStatus()
                   : absl::FailedPreconditionError(absl::StrCat(python, " does not run as Python"));
}

// A short form of the module's own help, for when it cannot run.
constexpr char kHelp[] =
    "  DUMP                   folder with K and V of your model, safetensors or npy\n"
    "  --out FOLDER           folder for evaluate.json and the page evaluate.html [.]\n"
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

absl::Status RunModule(std::span<const std::string> words) {
  CAIRN_ASSIGN_OR_RETURN(const Words given, TakePython(words));
  const absl::Status ready = Probe(given.python);
  if (!ready.ok() && AsksForHelp(given.rest)) {
    absl::PrintF("%s%s\n", kHelp, ready.message());
    return absl::OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(ready);
  setenv("CAIRN_PROGRAM", "cairnctl evaluate", 1);
  std::vector<std::string> all{given.python, "-m", "cairn.evaluate"};
  all.insert(all.end(), given.rest.begin(), given.rest.end());
  std::fflush(nullptr);
  execvp(given.python.c_str(), Pointers(all).data());
  return CannotRun(given.python, errno);
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
    .run_words = RunModule,
};

}  // namespace cairn::cli
