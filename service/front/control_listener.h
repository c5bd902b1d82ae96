// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where clients of the control plane connect, a TCP port or a unix socket, and where operators do,
// and the thread that accepts them. gRPC's own listener stops for good once it has failed to
// accept, and does not say who its peers are.
//
// A connection goes to gRPC with the first byte that it sends. Until then it is silent, and costs a
// descriptor; of too many silent ones, the oldest of the party that has most goes
// (base/newcomers.h). So it is with those that gRPC has and that have no session
// (ControlConnections).
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

  ControlConnections& connections() { return connections_; }
  // OK: the thread runs, and the server behind it answers a new connection in HTTP/2. It asks with
  // a connection of its own, which takes no place of a client's. An answer holds for a second.
  absl::Status Probe();
  void Report(MetricSink& sink) const;

 private:
  struct Door {
    ControlAddress address;
    bool is_admin = false;
    std::optional<transport::SocketFile> file;
    std::optional<Acceptor> acceptor;
  };
  struct Silent {
    Fd socket;
    const Door* door = nullptr;
    absl::Time deadline;
  };

  ControlListener();
  void Run();
  absl::Status Open(const ControlAddress& address, bool is_admin, mode_t mode);
  void WatchDoors(bool accepts);
  int WaitMs() const;
  // Hands probes to gRPC, and watches doors that were made again. False: it is to stop.
  bool TakeNews();
  // False: out of descriptors, so wait a moment before the next.
  bool AcceptAll(Door& door);
  // Takes an accepted connection, which is silent so far.
  void TakeIn(const Door& door, Fd socket);
  // It has spoken: gRPC has it from now on.
  void Pass(uint64_t number);
  void ExpireSilent();
  // Operators who have a door of their own share no limit with others.
  bool IsApart(const Door& door) const { return &door != &doors_.front(); }
  Newcomers& SilentOf(const Door& door) { return IsApart(door) ? silent_operators_ : silent_all_; }
  absl::Status Ask();

  std::vector<Door> doors_;  // the first of everybody, the last of operators
  std::function<void(Fd socket)> take_;
  Fd wake_, epoll_;
  ControlConnections connections_;

  // Of the thread.
  uint64_t numbers_ = 0;               // of connections, and tags of events
  std::map<uint64_t, Silent> silent_;  // by number, so by age
  Newcomers silent_all_, silent_operators_;
  absl::Time accepts_again_ = absl::InfinitePast();  // out of descriptors until then

  mutable Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_unwatched_ ABSL_GUARDED_BY(mutex_) = false;  // a door was made again
  std::vector<Fd> probes_ ABSL_GUARDED_BY(mutex_);     // for gRPC
  absl::Status probed_ ABSL_GUARDED_BY(mutex_);
  absl::Time probed_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  Counter accepted_, gave_way_, late_, out_of_files_;
  std::thread thread_;
};

}  // namespace cairn
