// SPDX-License-Identifier: Apache-2.0
#pragma once
// A listening socket at a path. The daemon's are SOCK_SEQPACKET for the data plane, SOCK_STREAM for
// the control plane.
//
// The file can be removed or replaced while the socket is open. Keep() repairs that.
//
// Thread-safety: Thread-compatible; the descriptor of get() never changes, so other threads may
// accept meanwhile. Move-only; destroying it removes the file if it still exists, even if it was
// moved.

#include <sys/socket.h>
#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "base/file.h"

namespace cairn::transport {

class SocketFile {
 public:
  // Makes the socket file with `mode`: 0660, unless only our own user may connect. Makes a missing
  // folder with mode 0700; its parent must exist. Replaces a socket file without a listener, and no
  // other file. Errors: InvalidArgument (the path is empty or too long); FailedPrecondition
  // (another process listens there, the path is not a socket, or FolderRiskOf() refuses the
  // folder); Unavailable (as errno says).
  static absl::StatusOr<SocketFile> Listen(const std::string& path, int type = SOCK_SEQPACKET,
                                           mode_t mode = 0660);

  SocketFile(SocketFile&& source) noexcept = default;
  SocketFile& operator=(SocketFile&&) = delete;
  ~SocketFile();

  // Checks that the file at the path is still the one that was made. Makes it again, and returns
  // true, if it is gone or was replaced by one without a listener. The descriptor of get() then
  // refers to another socket: add it to an epoll again, and restart a running poll(). Errors: those
  // of Listen(); the old socket stays open.
  absl::StatusOr<bool> Keep();

  int get() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  SocketFile(std::string path, int type, mode_t mode, Fd socket)
      : path_(std::move(path)), type_(type), mode_(mode), socket_(std::move(socket)) {}
  void RemoveOurs() const;

  std::string path_;
  int type_ = 0;
  mode_t mode_ = 0;
  Fd socket_;
  Fd file_;  // the file itself, even if it is moved
};

// What other users could do to a socket in a folder.
struct FolderRisk {
  bool is_refused = false;  // the daemon does not start
  std::string text;         // for people; empty: nothing, except by root
};
// Examines the folder of the socket at `path`, for a daemon that runs as user `owner`. A user who
// can write the folder can replace the daemon's socket and then receives all its connections.
//
// - Refused: a folder that everybody can write, without the sticky bit. A mount point is exempt: a
//   container's emptyDir is one, and its mode is not the daemon's choice.
// - Refused: a folder /tmp/cairn-* that not only the owner can access. Anybody can make one of that
//   name first.
FolderRisk FolderRiskOf(const std::string& path, uid_t owner);

// Connects to the socket at `path`; the result is non-blocking and close-on-exec. Errors:
// Unavailable (nobody listens), DeadlineExceeded (its backlog stays full), InvalidArgument (the
// path is empty or too long).
absl::StatusOr<Fd> ConnectSocketFile(const std::string& path, absl::Time deadline);

}  // namespace cairn::transport
