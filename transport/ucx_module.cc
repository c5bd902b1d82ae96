// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx_module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "base/status.h"

namespace cairn::transport {
namespace {

Mutex load_mutex;
UcxModule* loaded ABSL_GUARDED_BY(load_mutex) = nullptr;

// Returns paths in the folder of the program or library with this code, and in the lib folder next
// to that folder.
std::vector<std::string> Candidates() {
  std::vector<std::string> files;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&LoadUcxModule), &info) != 0 &&
      info.dli_fname != nullptr) {
    std::string self = info.dli_fname;
    if (self.find('/') == self.npos || self == "/proc/self/exe") {  // a program found by PATH
      char path[4096];
      const ssize_t bytes = readlink("/proc/self/exe", path, sizeof(path));
      self = bytes > 0 ? std::string(path, static_cast<size_t>(bytes)) : "";
    }
    const size_t slash = self.rfind('/');
    if (slash != self.npos) {
      const std::string folder = self.substr(0, slash);
      files.push_back(absl::StrCat(folder, "/", kUcxModuleFile));
      files.push_back(absl::StrCat(folder, "/../lib/", kUcxModuleFile));
    }
  }
  files.push_back(kUcxModuleFile);  // the loader searches its path
  return files;
}

// Variables that UCX reads when it is loaded. For some values UCX calls abort(): a log file that
// cannot be written, limits that are too small, a level that makes messages fatal.
constexpr std::string_view kReadAtLoad[] = {
    "UCX_ASYNC_MAX_EVENTS",  "UCX_LOG_FILE",         "UCX_LOG_FILE_ROTATE", "UCX_LOG_FILE_SIZE",
    "UCX_LOG_LEVEL_TRIGGER", "UCX_MODULE_LOG_LEVEL", "UCX_RCACHE_STAT_MAX", "UCX_RCACHE_STAT_MIN"};

// If the module or UCX is already loaded, UCX has already read these variables.
absl::Status CheckVariables(const std::vector<std::string>& files) {
  std::vector<std::string> found;
  for (const std::string& name : UcxVariables()) {
    const char* const value = std::getenv(name.c_str());
    const bool is_stream = value != nullptr && std::string_view(value) == "stderr";
    if (!is_stream && std::ranges::find(kReadAtLoad, name) != std::end(kReadAtLoad)) {
      found.push_back(name);
    }
  }
  const auto is_loaded = [](const std::string& file) {
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    return library != nullptr && dlclose(library) == 0;
  };
  if (found.empty() || std::ranges::any_of(files, is_loaded) || is_loaded("libucs.so.0")) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the environment has ", absl::StrJoin(found, ", "),
      ", with which UCX can end the process when it is loaded; unset them, or load UCX earlier"));
}

absl::StatusOr<UcxModule*> Take(void* library, const std::string& file) {
  const auto make = reinterpret_cast<UcxModuleFactory>(dlsym(library, kUcxModuleSymbol));
  UcxModule* module = make == nullptr ? nullptr : make(kUcxModuleVersion);
  if (module == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, " is not the ucx module of version ", kUcxModuleVersion));
  }
  return module;
}

}  // namespace

std::vector<std::string> UcxVariables() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    if (text.starts_with("UCX_")) names.emplace_back(text.substr(0, text.find('=')));
  }
  std::ranges::sort(names);
  return names;
}

absl::StatusOr<UcxModule*> LoadUcxModule(const std::string& path) {
  const MutexLock lock(load_mutex);
  if (loaded != nullptr) {
    return loaded;
  }
  const std::vector<std::string> files =
      path.empty() ? Candidates() : std::vector<std::string>{path};
  CAIRN_RETURN_IF_ERROR(CheckVariables(files));
  std::vector<std::string> reasons;
  for (const std::string& file : files) {
    // Never closed, because UCX keeps threads and handlers of its own.
    if (void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      CAIRN_ASSIGN_OR_RETURN(loaded, Take(library, file));
      return loaded;
    }
    const char* reason = dlerror();
    reasons.push_back(
        absl::StrCat(file, " (", reason != nullptr ? reason : "no reason given", ")"));
  }
  return absl::UnavailableError(
      absl::StrCat("no ucx module; searched for ", absl::StrJoin(reasons, ", ")));
}

}  // namespace cairn::transport
