// SPDX-License-Identifier: Apache-2.0
#pragma once
// File descriptors, small files, and memory that processes share.
#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/check.h"

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
  // Takes ownership of `fd`, after closing the descriptor that it owned before.
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

// Reads a whole file of at most `bytes_max` bytes. Errors: ResourceExhausted (the file is larger),
// NotFound, PermissionDenied, or another code that fits the errno. The message names the path.
absl::StatusOr<std::string> ReadFile(const std::string& path, std::size_t bytes_max);

// Replaces the file at `path` with a file that has these bytes: writes a file with the suffix
// ".new" beside it, and renames that file. If it returns OK, the new file survives a power loss.
// After an error, `path` has either the old file or the new one.
absl::Status WriteFileDurably(const std::string& path, std::span<const std::byte> bytes);
// Makes changes in a folder durable: files that were created, renamed or removed.
absl::Status SyncFolder(const std::string& path);

// --- Direct I/O ----------------------------------------------------------------------------------

// Checks whether files in a folder can bypass the page cache (O_DIRECT). Writes a page to a file
// "probe" in the folder and removes the file. Errors: InvalidArgument if the file system is in
// memory, is the root file system of a container, or refuses O_DIRECT. On such a file system, pages
// would be in memory twice, and a completed write might not have reached the device. For other
// errors the code fits the errno.
absl::Status CheckDirectIo(const std::string& folder);

// --- Shared memory -------------------------------------------------------------------------------

// Maps the first `bytes` of `fd` at an address that is a multiple of 2 MiB, so that the kernel can
// use huge pages. `protection` is as in mmap(). Returns null, and sets errno, if the kernel
// refuses. The caller unmaps `bytes` bytes from the returned address.
//
// Thread-safety: Thread-safe.
std::byte* MapFile(int fd, uint64_t bytes, int protection);

// Seals a memfd permanently: its size and its pages can no longer change, and no new writable
// mapping can be made. Existing mappings stay writable. Returns a second descriptor for the memfd,
// which is read-only even without the seals. If the kernel refuses, returns an invalid descriptor
// and sets errno.
//
// Thread-safety: Thread-safe.
Fd SealForReaders(int memfd);

// --- Polling -------------------------------------------------------------------------------------

// Sets the `events` of `fd` that `epoll` reports with `tag`, in place of those set before. With 0,
// only hang-ups and errors are reported. CAIRN_CHECKs that the kernel has room for the descriptor.
inline void WatchSocket(int epoll, int fd, uint64_t tag, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) != 0) {
    CAIRN_CHECK(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll takes no more sockets");
  }
}

}  // namespace cairn
