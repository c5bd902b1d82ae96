// SPDX-License-Identifier: Apache-2.0
#pragma once
// The listening sockets of the control plane, and the thread that accepts connections. There is a
// TCP or unix socket for clients and one for operators. gRPC's own listener is not used: it stops
// forever after a failed accept, and does not tell which user a peer is.
//
// A connection is passed to gRPC when it sends its first byte. Until then it is silent, and costs
// only a descriptor. If too many connections are silent, the oldest one of the party with the most
// is closed (base/newcomers.h). ControlConnections applies the same rule to gRPC's connections
// without a session.
//
// Thread-safety: Thread-safe. The thread is named "control".

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/newcomers.h"
#include "service/config_value.h"
#include "service/front/acceptor.h"
#include "service/front/control_connections.h"
#include "service/front/doors.h"
#include "service/front/tls_door.h"
#include "transport/local/door_file.h"
#include "transport/local/socket.h"

namespace cairn {

class ControlListener {
 public:
  // Binds to both addresses, or to one socket if they are equal. A separate unix socket for `admin`
  // is accessible only to our own user; without a unix socket no peer is an operator. Errors: those
  // of Acceptor::Listen() or SocketFile::Listen().
  // Each of `folders` gets a socket for clients, whose identities name the folder (--door).
  // `tls` accepts at TCP addresses; null: they are plain text. It must outlive the listener, and be
  // closed before Stop().
  static absl::StatusOr<std::unique_ptr<ControlListener>> Bind(
      const ControlAddress& control, const std::optional<ControlAddress>& admin,
      TlsDoor* tls = nullptr, const std::vector<std::string>& folders = {});
  ~ControlListener() { Stop(); }

  // Returns the address of clients, with the port that is bound.
  const ControlAddress& address() const { return doors_.front().address; }
  // Returns null if there is no address for operators.
  const ControlAddress* admin_address() const {
    if (doors_.back().is_admin) return &doors_.back().address;
    return doors_.front().is_admin ? &doors_.front().address : nullptr;
  }
  // Registers the socket files, so that `doors` repairs them until Stop().
  void AddTo(Doors& doors);
  // Passes connections to `take`, on the thread. Call it once.
  void Start(std::function<void(Fd socket)> take);
  // Accepts no more, and closes waiting connections. Idempotent.
  void Stop();

  ControlConnections& connections() { return connections_; }
  // Returns OK if the thread runs and gRPC's server answers a new connection in HTTP/2. The probe
  // uses a connection of its own, which no limit counts. The result is reused for a second.
  absl::Status Probe();
  void Report(MetricSink& sink) const;

 private:
  struct Door {
    ControlAddress address;
    bool is_admin = false;
    std::optional<transport::SocketFile> file;
    std::optional<transport::DoorFile> folder;  // of --door
    std::optional<Acceptor> acceptor;           // nullopt: TLS accepts there
  };
  // A connection after a successful TLS handshake.
  struct Proved {
    Fd plain;
    PeerIdentity identity;
    uint64_t party = 0;
    size_t door = 0;
  };
  struct Silent {
    Fd socket;
    const Door* door = nullptr;
    absl::Time deadline;
  };

  ControlListener();
  void Run();
  absl::Status Open(const ControlAddress& address, bool is_admin, mode_t mode, TlsDoor* tls);
  absl::Status OpenFolder(const std::string& folder);
  void WatchDoors(bool accepts);
  void WatchAgain();  // a socket was made again. Thread-safe.
  int WaitMs() const;
  // Passes probes and TLS connections to gRPC, and watches sockets that were made again. Returns
  // false if the thread must stop.
  bool TakeNews();
  // Accepts all connections that wait. Returns false if descriptors ran out; wait a moment before
  // the next call.
  bool AcceptAll(Door& door);
  // Adds an accepted connection as silent.
  void TakeIn(const Door& door, Fd socket);
  // Passes the connection to gRPC, because it has sent a byte.
  void Pass(uint64_t number);
  void Give(uint64_t number, Fd socket, PeerIdentity identity, uint64_t party, const Door& door);
  void ExpireSilent();
  // Whether clients cannot use this listener: its connections have limits of their own.
  bool IsApart(const Door& door) const {
    return &door != &doors_.front() && !door.folder.has_value();
  }
  uint64_t Party(const Door& door, int socket) const;
  Newcomers& SilentOf(const Door& door) { return IsApart(door) ? silent_operators_ : silent_all_; }
  absl::Status Ask();

  // The first is for clients, those of folders follow, the last is for operators.
  std::vector<Door> doors_;
  std::function<void(Fd socket)> take_;
  Fd wake_, epoll_;
  ControlConnections connections_;

  // Used by the thread only.
  uint64_t numbers_ = 0;               // numbers of connections, also the tags of epoll events
  std::map<uint64_t, Silent> silent_;  // keyed by number, so ordered by age
  Newcomers silent_all_, silent_operators_;
  absl::Time accepts_again_ = absl::InfinitePast();  // set when descriptors ran out

  mutable Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_unwatched_ ABSL_GUARDED_BY(mutex_) = false;   // a socket was made again
  std::vector<Fd> probes_ ABSL_GUARDED_BY(mutex_);      // connections for gRPC
  std::vector<Proved> proved_ ABSL_GUARDED_BY(mutex_);  // connections for gRPC
  absl::Status probed_ ABSL_GUARDED_BY(mutex_);
  absl::Time probed_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  Counter accepted_, gave_way_, late_, out_of_files_;
  std::thread thread_;
};

}  // namespace cairn
