// SPDX-License-Identifier: Apache-2.0
#include "client/cli/python.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cairn::cli {
namespace {

constexpr int kNoPackage = 3;
constexpr int kNoOthers = 4;
constexpr std::string_view kOthers = "numpy matplotlib jinja2";
// Finds the packages without loading them, to tell a missing package from a failing one.
constexpr char kProbe[] =
    "import sys, importlib.util as u\n"
    "has = lambda name: u.find_spec(name) is not None\n"
    "others = all(map(has, ('numpy', 'matplotlib', 'jinja2')))\n"
    "sys.exit(3 if not has('cairn') else 0 if others else 4)";

// For exec: pointers into `words`, which must outlive them.
std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) {
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> ModuleCommand(const std::string& python, const std::string& module,
                                       const std::vector<std::string>& words) {
  std::vector<std::string> all{python, "-m", module};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

absl::Status CannotRun(const std::string& python, int error) {
  return absl::FailedPreconditionError(absl::StrCat("cannot run ", python, ": ",
                                                    std::strerror(error),
                                                    "; name a Python 3.10 or later with --python"));
}

// Returns the exit code of the command, or -1 if a signal ended it. `input`: its standard input;
// null: this process's.
absl::StatusOr<int> RunToEnd(std::vector<std::string> words, std::FILE* input) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (input != nullptr) {
    posix_spawn_file_actions_adddup2(&actions, ::fileno(input), STDIN_FILENO);
  }
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, words[0].c_str(), &actions, nullptr, Pointers(words).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return CannotRun(words[0], error);
  }
  int ended = 0;
  while (waitpid(child, &ended, 0) < 0) {  // ends: a signal is the only reason to ask again
    if (errno != EINTR) {
      return CannotRun(words[0], errno);
    }
  }
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
}

// Returns an unnamed file with that content, read from its start.
absl::StatusOr<std::unique_ptr<std::FILE, int (*)(std::FILE*)>> FileOf(std::string_view content) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  if (file == nullptr ||
      std::fwrite(content.data(), 1, content.size(), file.get()) != content.size() ||
      std::fflush(file.get()) != 0 || ::lseek(::fileno(file.get()), 0, SEEK_SET) != 0) {
    return absl::UnknownError(
        absl::StrCat("cannot write a temporary file: ", std::strerror(errno)));
  }
  return file;
}

}  // namespace

std::string DefaultPython() {
  const char* environment = std::getenv("CAIRN_PYTHON");
  return environment != nullptr ? environment : "python3";
}

absl::Status CheckPython(const std::string& python) {
  CAIRN_ASSIGN_OR_RETURN(const int code, RunToEnd({python, "-c", kProbe}, nullptr));
  if (code == kNoPackage || code == kNoOthers) {
    const bool is_ours = code == kNoPackage;
    return absl::FailedPreconditionError(absl::StrCat(
        python, " lacks ",
        is_ours ? "the package cairn. Its wheel is beside the package of cairnctl in a release, "
                  "and 'make wheel'\nin Cairn's source builds it in build/wheel. Install it with"
                : "packages that pages and figures need. Install them with",
        "\n  ", python, " -m pip install ", is_ours ? "kvcairn-*.whl " : "", ToAbsl(kOthers),
        "\nor name a Python that has all of them with --python or $CAIRN_PYTHON"));
  }
  return code == 0 ? absl::OkStatus()
                   : absl::FailedPreconditionError(absl::StrCat(python, " does not run as Python"));
}

absl::Status BecomeModule(const std::string& python, const std::string& module,
                          const std::vector<std::string>& words) {
  std::vector<std::string> all = ModuleCommand(python, module, words);
  std::fflush(nullptr);
  execvp(python.c_str(), Pointers(all).data());
  return CannotRun(python, errno);
}

absl::Status RunModule(const std::string& python, const std::string& module,
                       const std::vector<std::string>& words, std::string_view input) {
  CAIRN_ASSIGN_OR_RETURN(const auto file, FileOf(input));
  std::fflush(nullptr);
  CAIRN_ASSIGN_OR_RETURN(const int code,
                         RunToEnd(ModuleCommand(python, module, words), file.get()));
  return code == 0 ? absl::OkStatus()
                   : absl::UnknownError(absl::StrCat(module, " ended with ", code));
}

}  // namespace cairn::cli
