// SPDX-License-Identifier: Apache-2.0
#pragma once
// A listening socket at a path. The daemon's are SOCK_SEQPACKET for the data plane,
// SOCK_STREAM for the control plane.
//
// The file can go, or another can take its place, while the socket lives: Keep() looks after it.
//
// Thread-safety: Thread-compatible; get() keeps its number, so other threads may accept meanwhile.
// Move-only; destroying it removes the file if it is still there, wherever it was moved to.

#include <sys/socket.h>
#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "base/file.h"

namespace cairn::transport {

class SocketFile {
 public:
  // With that mode, 0660 unless only our own user may come in. Makes a missing folder with mode
  // 0700; the one above it must exist. Replaces a socket file that nobody listens at, and nothing
  // else. Errors: InvalidArgument (path too long or empty), FailedPrecondition (somebody listens
  // there, the path is no socket, or the folder is one that is refused: FolderRiskOf()),
  // Unavailable (as errno says).
  static absl::StatusOr<SocketFile> Listen(const std::string& path, int type = SOCK_SEQPACKET,
                                           mode_t mode = 0660);

  SocketFile(SocketFile&& source) noexcept = default;
  SocketFile& operator=(SocketFile&&) = delete;
  ~SocketFile();

  // Looks whether the file at the path is still the one that was made. A file that has gone, or
  // that was replaced by one that nobody listens at, is made again; true says so. Then get() has
  // its number still, and is another socket: an epoll has to be given it anew, and a poll() under
  // way to begin again. Errors: those of Listen(); the old socket goes on.
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
  Fd file_;  // the file itself, wherever it is moved to
};

// What somebody else could do to a socket in a folder.
struct FolderRisk {
  bool is_refused = false;  // no daemon starts there
  std::string text;         // for people; empty: nothing, but for root
};
// Of the folder of the socket at `path`, for a daemon of user `owner`. Whoever may write the folder
// can put a socket of its own in the place of the daemon's, and is then the daemon for all who
// connect.
//
// - Refused: everybody may write it, without the sticky bit. Not so where it is a mount of its own:
//   that is how a container gets its emptyDir, whose mode is no choice of the daemon's.
// - Refused: a folder /tmp/cairn-* that is not the owner's alone. Anybody can make one of that
//   name first.
FolderRisk FolderRiskOf(const std::string& path, uid_t owner);

// A connection to the socket at `path`, non-blocking, close-on-exec. Unavailable when nobody
// listens; DeadlineExceeded when its backlog stays full; InvalidArgument when the path is too long
// or empty.
absl::StatusOr<Fd> ConnectSocketFile(const std::string& path, absl::Time deadline);

}  // namespace cairn::transport
