// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where clients of the control plane connect, a TCP port or a unix socket, and where operators do,
// and the thread that accepts them. gRPC's own listener stops for good once it has failed to
// accept, and does not say who its peers are.
//
// A connection is known by its descriptor. gRPC keeps that open until the last call of the
// connection is over, so the number names one connection for as long as anybody can ask; a test
// holds gRPC to it.
//
// Thread-safety: Thread-safe. The thread is named "control".

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/peer_identity.h"
#include "service/config_value.h"
#include "service/front/acceptor.h"
#include "service/front/doors.h"
#include "transport/local/socket_file.h"

namespace cairn {

class ControlListener {
 public:
  // Binds to both; one socket where they are the same. Where `admin` is a unix socket of its own,
  // nobody but our user comes in; where it is none, no peer is an operator. Errors: those of
  // Acceptor::Listen() or SocketFile::Listen().
  static absl::StatusOr<std::unique_ptr<ControlListener>> Bind(
      const ControlAddress& control, const std::optional<ControlAddress>& admin);
  ~ControlListener() { Stop(); }

  // With the port really bound.
  const ControlAddress& address() const { return doors_.front().address; }
  // Null: operators come in nowhere.
  const ControlAddress* admin_address() const {
    return doors_.back().is_admin ? &doors_.back().address : nullptr;
  }
  // Those of the two that are socket files; looked after until Stop().
  void AddTo(Doors& doors);
  // From now on connections go to `take`, on the thread. Once.
  void Start(std::function<void(Fd socket)> take);
  // Accepts no more, and closes what waits. Idempotent.
  void Stop();

  struct Peer {
    std::optional<PeerIdentity> identity;  // none: a TCP connection, or no such peer
    bool is_operator = false;
  };
  // Who is behind a call whose gRPC peer is `peer`.
  Peer PeerOf(std::string_view peer) const;
  // Connects as a client does. OK: the server behind it answers in HTTP/2. An answer holds for a
  // second.
  absl::Status Probe();
  void Report(MetricSink& sink) const;

 private:
  struct Connection {
    ino_t inode = 0;  // tells it from a later user of the descriptor
    Peer peer;
  };
  struct Door {
    ControlAddress address;
    bool is_admin = false;
    std::optional<transport::SocketFile> file;
    std::optional<Acceptor> acceptor;
  };

  ControlListener() = default;
  void Run();
  void Wake() const;
  absl::Status Open(const ControlAddress& address, bool is_admin, mode_t mode);
  // Whether to wait a moment before the next.
  bool AcceptAll(Door& door);
  void TakeIn(const Door& door, Fd socket);
  // For one more beside `connections_max`.
  bool HasRoom(size_t connections_max) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Connect() const;

  std::vector<Door> doors_;  // the first of everybody, the last of operators
  std::function<void(Fd socket)> take_;
  Fd wake_;
  std::atomic<bool> is_stopping_{false};
  mutable Mutex mutex_;
  // By descriptor: those open, and some that have gone.
  absl::flat_hash_map<int, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  absl::Time swept_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Status probed_ ABSL_GUARDED_BY(mutex_);
  absl::Time probed_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  Counter accepted_, refused_, out_of_files_;
  std::thread thread_;
};

}  // namespace cairn
