// SPDX-License-Identifier: Apache-2.0
#pragma once
// File descriptors and small files.
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cairn {

// Owns a file descriptor and closes it on destruction.
// Thread-safety: Thread-compatible.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& source) noexcept : fd_(source.Release()) {}
  Fd& operator=(Fd&& source) noexcept {
    if (this != &source) {
      Reset(source.Release());
    }
    return *this;
  }
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  bool is_valid() const { return fd_ >= 0; }
  // Gives up ownership and returns the descriptor.
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }
  // Closes the held descriptor and takes ownership of `fd`.
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

// Reads a whole file of at most `bytes_max` bytes. Errors: ResourceExhausted if the file is larger;
// NotFound, PermissionDenied and others as errno says. The message names the path.
absl::StatusOr<std::string> ReadFile(const std::string& path, std::size_t bytes_max);

// Replaces the file at `path` by one with these bytes: writes a file with the suffix ".new" beside
// it and renames that. After OK the new file survives a power cut. After an error `path` holds
// either the old file or the new one.
absl::Status WriteFileDurably(const std::string& path, std::span<const std::byte> bytes);
// Makes it durable that files were created, renamed or removed in a folder.
absl::Status SyncFolder(const std::string& path);

}  // namespace cairn
