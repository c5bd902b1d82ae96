// SPDX-License-Identifier: Apache-2.0
#pragma once
// A temporary folder of a test. Its destruction removes it with its contents. Its path is short
// enough for a unix socket.
//
// Thread-safety: Immutable.
#include <stdlib.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "tests/support/wait.h"

namespace cairn {

class TempDir {
 public:
  TempDir() : TempDir(std::filesystem::temp_directory_path()) {}
  // Makes it in the folder `where`. Use this if the system's temporary folder may be on an
  // unsuitable file system.
  explicit TempDir(const std::filesystem::path& where) {
    std::string pattern = (where / "cairn-XXXXXX").string();
    CAIRN_CHECK(::mkdtemp(pattern.data()) != nullptr, pattern);
    path_ = pattern;
  }
  // Copies the folder, in the same parent folder, in the state at one moment. This is the state
  // that a kill of the writing process would leave. Waits until nothing is written during the
  // copying.
  std::unique_ptr<TempDir> Copy() const {
    std::unique_ptr<TempDir> copy;
    CAIRN_CHECK(WaitFor([&] {
      const Files before = AllFiles();
      std::error_code error;
      copy = std::make_unique<TempDir>(path_.parent_path());
      std::filesystem::copy(
          path_, copy->path(),
          std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks,
          error);
      return !error && before.is_calm && AllFiles().marks == before.marks;
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
  struct Files {
    std::map<std::string, std::pair<uintmax_t, std::filesystem::file_time_type>> marks;
    bool is_calm = true;  // writes from now on have a newer time than earlier ones
  };
  Files AllFiles() const {
    constexpr std::chrono::milliseconds kTick(20);  // the largest granularity of file times
    Files files;
    const auto now = std::filesystem::file_time_type::clock::now();
    std::error_code error;
    for (auto file = std::filesystem::recursive_directory_iterator(path_, error);
         !error && file != std::filesystem::end(file); file.increment(error)) {
      std::error_code gone;
      const auto time = std::filesystem::last_write_time(file->path(), gone);
      const uintmax_t bytes = file->is_regular_file(gone) ? file->file_size(gone) : 0;
      files.marks[file->path().string()] = {bytes, time};
      files.is_calm &= now - time > kTick;
    }
    return files;
  }

  std::filesystem::path path_;
};

}  // namespace cairn
