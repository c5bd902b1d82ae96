// SPDX-License-Identifier: Apache-2.0
#pragma once
// A listening socket at a path. The daemon's are SOCK_SEQPACKET for the data plane,
// SOCK_STREAM for the control plane.
//
// Thread-safety: Thread-compatible. Move-only; destroying it removes the file if it is still ours.

#include <sys/socket.h>
#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "base/file.h"

namespace cairn::transport {

class SocketFile {
 public:
  // With that mode, 0660 unless only our own user may come in. Replaces a socket file that nobody
  // listens at, and nothing else. Errors: InvalidArgument (path
  // too long or empty), FailedPrecondition (somebody listens there, or the path is no socket),
  // Unavailable (as errno says).
  static absl::StatusOr<SocketFile> Listen(const std::string& path, int type = SOCK_SEQPACKET,
                                           mode_t mode = 0660);

  SocketFile(SocketFile&& source) noexcept = default;
  SocketFile& operator=(SocketFile&&) = delete;
  ~SocketFile();

  int get() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  SocketFile(std::string path, Fd socket) : path_(std::move(path)), socket_(std::move(socket)) {}

  std::string path_;
  Fd socket_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// A connection to the socket at `path`, non-blocking, close-on-exec. Unavailable when nobody
// listens; DeadlineExceeded when its backlog stays full; InvalidArgument when the path is too long
// or empty.
absl::StatusOr<Fd> ConnectSocketFile(const std::string& path, absl::Time deadline);

}  // namespace cairn::transport
