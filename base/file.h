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

// Sole owner of a file descriptor, closed on destruction.
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
  // Gives up ownership.
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }
  // Closes what is held and takes `fd`.
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

// The whole of a file of at most `bytes_max` bytes. Errors: NotFound, PermissionDenied and others
// as errno says; ResourceExhausted if the file is larger; the message names the path.
absl::StatusOr<std::string> ReadFile(const std::string& path, std::size_t bytes_max);

// Puts a file with these bytes in the place of `path`, by way of a file beside it with the ending
// ".new". After OK it outlives a power cut; after an error `path` is what it was or the new file.
absl::Status WriteFileDurably(const std::string& path, std::span<const std::byte> bytes);
// Makes durable that files were made, renamed or removed in a folder.
absl::Status SyncFolder(const std::string& path);

}  // namespace cairn
