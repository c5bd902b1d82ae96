// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder of its own for a test, removed with everything in it on destruction. Short enough a path
// for a unix socket.
//
// Thread-safety: Immutable.
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "base/check.h"
#include "tests/support/wait.h"

namespace cairn {

class TempDir {
 public:
  TempDir() : TempDir(std::filesystem::temp_directory_path()) {}
  // In that folder, for what needs a file system that the system's temporary folder may not have.
  explicit TempDir(const std::filesystem::path& where) {
    std::string pattern = (where / "cairn-XXXXXX").string();
    CAIRN_CHECK(::mkdtemp(pattern.data()) != nullptr, pattern);
    path_ = pattern;
  }
  // Another, in the same folder, with what is in this one now: what a kill of the process that
  // writes here would leave. A file may go while it is copied: then once more.
  std::unique_ptr<TempDir> Copy() const {
    std::unique_ptr<TempDir> copy;
    CAIRN_CHECK(WaitFor([&] {
      std::error_code error;
      copy = std::make_unique<TempDir>(path_.parent_path());
      std::filesystem::copy(
          path_, copy->path(),
          std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks,
          error);
      return !error;
    }));
    return copy;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string File(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace cairn
